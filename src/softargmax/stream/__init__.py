r"""Softmax, log-softmax and log-sum-exp of arrays that do not fit in memory.

A row's state (m, l) is a monoid: the states of disjoint pieces merge into the state of the whole, so a row may be read
piece by piece. Pieces are cut at the block boundaries of the in-memory kernels, and merged in the same order:

.. math:: \mathrm{stream}(z) = \mathrm{in\ memory}(z) \text{, to the bit}

>>> import numpy as np, softargmax
>>> z = np.linspace(-3, 3, 10_000)
>>> bool(softargmax.stream.logsumexp(iter([z[:17], z[17:9_000], z[9_000:]])) == softargmax.logsumexp(z))
True
"""

from __future__ import annotations

from softargmax.stream.atomic_file import whole_file
from softargmax.stream.functions import log_softmax, logsumexp, softmax

__all__ = ["log_softmax", "logsumexp", "softmax", "whole_file"]
