"""The public functions of parallel for scores: those of normalize, for rows that are spread over processes."""

from __future__ import annotations

import functools
from typing import Any, TypedDict, Unpack

import torch  # noqa: TC002 `takes` reads the types of the options
from torch import Tensor  # noqa: TC002
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from softargmax.core.signature import takes
from softargmax.normalize import entropy as whole_entropy
from softargmax.normalize import kl_divergence as whole_kl_divergence
from softargmax.normalize import log_softmax as whole_log_softmax
from softargmax.normalize import logsumexp as whole_logsumexp
from softargmax.normalize import softmax as whole_softmax
from softargmax.parallel.torch_graphs import in_graphs
from softargmax.parallel.torch_spread import spread

Group = ProcessGroup | DeviceMesh | None


class RowKeywords(TypedDict, total=False):
    """The options of all functions of scores. They are documented in `softmax`."""

    group: ProcessGroup | DeviceMesh | None
    axis: int
    temperature: float | Tensor
    base: float | None
    where: Tensor | None


class MapKeywords(RowKeywords, total=False):
    """The options of functions whose result is laid out like the scores."""

    dtype: torch.dtype | None


class SumKeywords(RowKeywords, total=False):
    """The options of functions whose result has one number per row."""

    keepdims: bool


class TypedSumKeywords(SumKeywords, total=False):
    """The options of `logsumexp`."""

    weights: Tensor | None
    dtype: torch.dtype | None


DEFAULTS = {"axis": -1, "temperature": 1.0, "keepdims": False}
"""The defaults of options that are not None. They are those of the functions for whole rows."""


@in_graphs(whole_softmax)
@takes(MapKeywords, DEFAULTS)
def softmax(z: Tensor, /, **options: Unpack[MapKeywords]) -> Tensor:
    r"""Return this process's part of the softmax of rows that are spread over the processes of a group.

    .. math:: p_i = \frac{e^{\beta z_i}}{\sum_j e^{\beta z_j}}, \qquad \beta = \frac{\ln(\mathrm{base})}{T}

    Parameters
    ----------
    z : Tensor, in CPU memory
        This process's part of the scores. Along `axis`, the parts of all processes follow each other in the order of
        their ranks. They may have any lengths, also 0. All other axes are equal in all processes.
    group : ProcessGroup or DeviceMesh, optional
        The processes, or a mesh with one dimension. The default is all processes. The backend must serve CPU memory,
        as gloo does.
    axis : int
        The axis along which rows are spread.
    temperature, base, dtype
        As in `softargmax.softmax`, equal in all processes.
    where : Tensor of bool, optional
        This process's part of the mask.

    Returns
    -------
    Tensor
        p, laid out like z.

    Raises
    ------
    NotImplementedError
        If z is on a device.
    RuntimeError
        If another process does not answer within the group's timeout.
    TypeError, ValueError
        As in `softargmax.softmax`, and if shapes, dtypes or options differ between processes. All processes raise the
        same error.

    Notes
    -----
    p and its gradients have the bits of `softargmax.softmax` of the whole rows. Each process sends 32 bytes for each of
    its blocks of 4096 scores. A block that a cut divides is brought to the process that has its first score, and its
    results are sent back.

    Gradient: as in `softargmax.softmax`, for this process's part. All processes must run the backward pass.

    References
    ----------
    Milakov & Gimelshein (2018), Online normalizer calculation for softmax. arXiv:1805.02867.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> softargmax.parallel.softmax(torch.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    >>> dist.destroy_process_group()
    """
    return spread(whole_softmax, z, **options)


@in_graphs(whole_log_softmax)
@takes(MapKeywords, DEFAULTS)
def log_softmax(z: Tensor, /, **options: Unpack[MapKeywords]) -> Tensor:
    r"""Return this process's part of the log-softmax of rows that are spread over the processes of a group.

    .. math:: \log p_i = \beta z_i - \log \sum_j e^{\beta z_j}

    Parameters
    ----------
    z, group, axis, temperature, base, where, dtype
        As in `softargmax.parallel.softmax`.

    Returns
    -------
    Tensor
        log p, laid out like z, with the bits of `softargmax.log_softmax` of the whole rows.

    Raises
    ------
    NotImplementedError, RuntimeError, TypeError, ValueError
        As in `softargmax.parallel.softmax`.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> softargmax.parallel.log_softmax(torch.tensor([0.0, 0.0]))
    tensor([-0.6931, -0.6931])
    >>> dist.destroy_process_group()
    """
    return spread(whole_log_softmax, z, **options)


@in_graphs(whole_logsumexp)
@takes(TypedSumKeywords, DEFAULTS)
def logsumexp(z: Tensor, /, **options: Unpack[TypedSumKeywords]) -> Tensor:
    r"""Return the logarithm of the sum of exponentials of rows that are spread over the processes of a group.

    .. math:: L = \frac{1}{\beta} \log \sum_j e^{\beta z_j}

    Parameters
    ----------
    z, group, axis, temperature, base, where, dtype
        As in `softargmax.parallel.softmax`.
    weights : Tensor, optional
        This process's weights, at least 0. They broadcast with z.
    keepdims : bool
        Keep `axis` with size 1.

    Returns
    -------
    Tensor
        One number per row, in all processes, with the bits of `softargmax.logsumexp` of the whole rows.

    Raises
    ------
    NotImplementedError, RuntimeError, TypeError, ValueError
        As in `softargmax.parallel.softmax`.

    Notes
    -----
    Gradient: with incoming g, it is p g. Every process passes the same g.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> softargmax.parallel.logsumexp(torch.tensor([0.0, 0.0]))
    tensor(0.6931)
    >>> dist.destroy_process_group()
    """
    return spread(whole_logsumexp, z, **options)


@in_graphs(whole_entropy)
@takes(SumKeywords, DEFAULTS)
def entropy(z: Tensor, /, **options: Unpack[SumKeywords]) -> Tensor:
    r"""Return the entropy, in nats, of the softmax of rows that are spread over the processes of a group.

    .. math:: H = -\sum_i p_i \log p_i

    Parameters
    ----------
    z, group, axis, temperature, base, where
        As in `softargmax.parallel.softmax`.
    keepdims : bool
        Keep `axis` with size 1.

    Returns
    -------
    Tensor
        One number per row, in all processes, with the bits of `softargmax.entropy` of the whole rows.

    Raises
    ------
    NotImplementedError, RuntimeError, TypeError, ValueError
        As in `softargmax.parallel.softmax`.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> softargmax.parallel.entropy(torch.tensor([0.0, 0.0]))
    tensor(0.6931)
    >>> dist.destroy_process_group()
    """
    return spread(whole_entropy, z, **options)


@in_graphs(whole_kl_divergence)
@takes(SumKeywords, DEFAULTS)
def kl_divergence(z_p: Tensor, z_q: Tensor, /, **options: Unpack[SumKeywords]) -> Tensor:
    r"""Return the divergence between two softmaxes of rows that are spread over the processes of a group.

    .. math:: D = \sum_i p_i (\log p_i - \log q_i)

    Parameters
    ----------
    z_p, z_q : Tensor, in CPU memory
        This process's part of the scores of p, and of q, in the same shape.
    group, axis, temperature, base, where
        As in `softargmax.parallel.softmax`.
    keepdims : bool
        Keep `axis` with size 1.

    Returns
    -------
    Tensor
        One number per row, in all processes, with the bits of `softargmax.kl_divergence` of the whole rows.

    Raises
    ------
    NotImplementedError, RuntimeError, TypeError, ValueError
        As in `softargmax.parallel.softmax`.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> softargmax.parallel.kl_divergence(torch.tensor([0.0, 0.0]), torch.tensor([0.0, 0.0]))
    tensor(0.)
    >>> dist.destroy_process_group()
    """
    return spread(_divergence, z_p, z_q, **options)


@functools.wraps(whole_kl_divergence)
def _divergence(z_p: Any, z_q: Any, **options: Any) -> Any:
    if getattr(z_p, "shape", None) != getattr(z_q, "shape", None):
        raise ValueError("z_q: expected the shape of z_p")
    return whole_kl_divergence(z_p, z_q, **options)
