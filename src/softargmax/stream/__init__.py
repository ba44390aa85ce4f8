r"""Softmax, log-softmax and log-sum-exp of arrays that do not fit in memory.

The states (m, l) of the pieces of a row merge into the state of the row, since states are a monoid. So a row can be
read piece by piece. Pieces are cut at the block boundaries of the in-memory kernels and merged in the same order.
Therefore

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
