r"""Softmax, log-softmax and log-sum-exp of arrays that do not fit in memory.

A row is read in pieces. Each piece has a state (m, l), and merging these states gives the state of the row. Pieces are
cut at the block boundaries of the in-memory kernels and merged in the same order. The results are therefore
bit-identical:

.. math:: \mathrm{stream}(z) = \mathrm{in\ memory}(z)

>>> import numpy as np, softargmax
>>> z = np.linspace(-3, 3, 10_000)
>>> bool(softargmax.stream.logsumexp(iter([z[:17], z[17:9_000], z[9_000:]])) == softargmax.logsumexp(z))
True
"""

from __future__ import annotations

from softargmax.stream.atomic_file import whole_file
from softargmax.stream.functions import log_softmax, logsumexp, softmax

__all__ = ["log_softmax", "logsumexp", "softmax", "whole_file"]
