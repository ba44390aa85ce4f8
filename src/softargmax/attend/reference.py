"""The primitives of this room by the definition, a few queries at a time, in any array-API library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softargmax.attend.options import Heads, part_of
from softargmax.attend.reference_parts import few, some
from softargmax.attend.reference_vjp import vjp
from softargmax.attend.results import AttentionWithLse
from softargmax.core.dispatch import device_of, namespace

if TYPE_CHECKING:
    from softargmax.attend.options import Beside, Options, Pages

__all__ = ["attention", "paged", "side_by_side", "vjp"]


def attention(heads: Heads, beside: Beside, options: Options) -> AttentionWithLse:
    """The output, in q's dtype, and lse in working precision (of other orders than 1: NaN)."""
    length = heads.q.shape[-2]
    found = [some(*part_of(heads, beside, part), options, part.start, length) for part in few(heads, beside)]
    xp = namespace(heads.q)
    return AttentionWithLse(
        xp.concat([one.output for one in found], axis=-2), xp.concat([one.lse for one in found], axis=-1)
    )


def paged(q: Any, pages: Pages, beside: Beside, options: Options) -> Any:
    """The output for keys in pages."""
    return attention(side_by_side(q, pages, beside), beside, options).output


def side_by_side(q: Any, pages: Pages, beside: Beside) -> Heads:
    """Keys and values of pages one behind the other; what is behind an entry's length is page 0's."""
    xp = namespace(q)
    used = xp.arange(pages.table.shape[1], device=device_of(q)) * pages.k.shape[1] < beside.lengths[..., 0, 0]
    table = xp.where(used, pages.table, 0)
    return Heads(q, _put_together(pages.k, table), _put_together(pages.v, table))


def _put_together(x: Any, table: Any) -> Any:
    """(pages, page size, heads, width) to (batch, heads, keys, width)."""
    xp = namespace(x)
    batch, count = table.shape
    if not x.shape[0]:
        return xp.zeros((batch, x.shape[2], count * x.shape[1], x.shape[3]), dtype=x.dtype, device=device_of(x))
    found = xp.take(x, xp.reshape(table, (-1,)), axis=0)
    found = xp.reshape(found, (batch, count * x.shape[1], *x.shape[2:]))
    return xp.permute_dims(found, (0, 2, 1, 3))
