r"""Softmax, log-softmax and log-sum-exp of arrays that do not fit in memory.

A row is read in pieces. Each piece has a state (m, l): its maximum and its sum of exponentials. Merging these states
gives the state of the row. The in-memory kernels also cut rows into blocks and merge their states. A stream cuts at the
same places and merges in the same order, so the results are bit-identical:

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
