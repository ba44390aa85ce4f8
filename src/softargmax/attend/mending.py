"""Queries whose numbers were not finite in the compiled core, made anew by the definition; others keep their bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.attend import reference
from softargmax.attend.options import Heads
from softargmax.core.dispatch import is_torch, namespace

if TYPE_CHECKING:
    from softargmax.attend.options import Beside, Options
    from softargmax.attend.results import AttentionWithLse


def mend(
    found: AttentionWithLse, strange: np.ndarray[Any, Any], heads: Heads, beside: Beside, options: Options
) -> None:
    """Write the definition's results into `found` where `strange` (..., H, L) says so: NumPy's arrays or tensors."""
    groups, length = heads.k.shape[-3], heads.q.shape[-2]
    each = heads.q.shape[-3] // groups
    wrong = strange.reshape(*strange.shape[:-2], groups, each * length).any(-1)
    for *entry, group in np.argwhere(wrong).tolist():
        at: Any = (*entry, slice(group * each, (group + 1) * each))
        right = reference.attention(*_of(heads, beside, tuple(entry), group, at), options)
        rows: Any = strange[at] != 0
        if is_torch(found.output):
            import torch

            rows = torch.from_numpy(rows)
        xp = namespace(found.lse)
        found.output[at][rows] = right.output[rows]
        found.lse[at][rows] = xp.astype(right.lse, found.lse.dtype)[rows]


def _of(heads: Heads, beside: Beside, entry: tuple[int, ...], group: int, at: Any) -> tuple[Heads, Beside]:
    """One head of keys and the heads that read it."""
    xp, q = namespace(heads.q), heads.q
    of_keys = (*entry, slice(group, group + 1))

    def spread(x: Any, *last: int) -> Any:
        return xp.broadcast_to(x, (*q.shape[:-2], *last))[at] if hasattr(x, "shape") else x

    length, keys = heads.scores[-2:]
    lengths = beside.lengths
    return Heads(q[at], heads.k[of_keys], heads.v[of_keys]), beside._replace(
        scale=spread(beside.scale, length, 1),
        mask=spread(beside.mask, length, keys),
        bias=spread(beside.bias, length, keys),
        seeds=spread(beside.seeds, 1, 2),
        sink=None if beside.sink is None else xp.broadcast_to(beside.sink, (q.shape[-3],))[at[-1]],
        lengths=None if lengths is None else xp.broadcast_to(lengths, (*q.shape[:-3], 1, 1, 1))[entry],
    )
