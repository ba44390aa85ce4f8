r"""Softmax, log-softmax and log-sum-exp of what does not fit in memory.

A row's state (m, l) is a monoid: states of disjoint pieces merge to the state of the whole, so a row may be read piece
by piece. Here pieces are re-cut to the blocks that the in-memory kernels cut, and merged in their order:

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
