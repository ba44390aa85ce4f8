"""The public functions of parallel for draws: those of sample, for rows that are spread over processes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from softargmax.core.signature import public
from softargmax.parallel.torch_spread import spread
from softargmax.sample import categorical as whole_categorical

if TYPE_CHECKING:
    from torch import Tensor

    from softargmax.parallel.torch_functions import Group

_FILTERS = ("top_k", "top_p", "min_p", "typical_p", "epsilon", "eta")


@public
def categorical(z: Tensor, /, *, group: Group = None, **options: Any) -> Tensor:
    r"""Draw classes from the softmax of rows that are spread over the processes of a group.

    .. math:: \arg\max_i\,(\beta z_i + g_i) \sim \mathrm{softmax}(\beta z)

    Parameters
    ----------
    z, group
        As in `softargmax.parallel.softmax`.
    axis, temperature, num_samples, seed, stream, generator
        As in `softargmax.categorical`, equal in all processes. So are the seeds that generators give.
    where : Tensor of bool, optional
        This process's part of the mask.

    Returns
    -------
    Tensor of int64
        The drawn classes, numbers among all classes, in all processes: those that `softargmax.categorical` draws from
        the whole rows with the same seed.

    Raises
    ------
    NotImplementedError
        For filters, and draws without replacement.
    RuntimeError, TypeError, ValueError
        As in `softargmax.categorical` and `softargmax.parallel.softmax`.

    Notes
    -----
    The noise of a class is a function of the seed, the row's stream and the number of the class among all classes. Each
    process draws from its part of a row, and sends 32 bytes per draw: the score of the drawn class, and its noise.

    There is no gradient. The log-probability of a draw is `softargmax.parallel.selected_log_softmax`.

    References
    ----------
    Gumbel (1954), Statistical theory of extreme values.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> softargmax.parallel.categorical(torch.tensor([[1.0, 2.0, 8.0]]), seed=0)
    tensor([2])
    >>> dist.destroy_process_group()
    """
    return spread(_unfiltered, z, group=group, **options)


@functools.wraps(whole_categorical)
def _unfiltered(z: Any, **options: Any) -> Any:
    wrong = [name for name in _FILTERS if options.get(name) is not None]
    if not options.get("replace", True):
        wrong.append("replace")
    if wrong:
        raise NotImplementedError(
            f"{wrong[0]}: rows that are spread over processes have only draws with replacement, without filters"
        )
    return whole_categorical(z, **options)
