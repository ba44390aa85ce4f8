"""The public functions of parallel for losses: those of loss, for classes that are spread over processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from softargmax.core import _native
from softargmax.core.check import dtype_of_rows, flag, one_of
from softargmax.core.loss_reduction import reduced, row_weights
from softargmax.core.processes import SpreadAxes
from softargmax.core.signature import takes_options_of
from softargmax.core.targets import IGNORE, in_range
from softargmax.core.torch_processes import spread_text
from softargmax.loss import cross_entropy as whole_cross_entropy
from softargmax.loss import cross_entropy_terms as whole_cross_entropy_terms
from softargmax.loss import linear_cross_entropy as whole_linear_cross_entropy
from softargmax.loss import selected_log_softmax as whole_selected_log_softmax
from softargmax.loss.results import CrossEntropyTerms
from softargmax.parallel.layout import whole_blocks
from softargmax.parallel.torch_agreement import Facts
from softargmax.parallel.torch_functions import Group  # noqa: TC001 `takes_options_of` reads the types
from softargmax.parallel.torch_graphs import in_graphs
from softargmax.parallel.torch_spread import Call, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from softargmax.parallel.layout import Layout


@in_graphs(whole_cross_entropy)
@takes_options_of(whole_cross_entropy)
def cross_entropy(z: Tensor, /, target: Tensor, *, group: Group = None, **options: Any) -> Tensor:
    r"""Return the cross-entropy of scores whose classes are spread over the processes of a group.

    .. math::
        \ell = -\sum_k m_k \log p_k + c\,\mathrm{lse}^2, \qquad
        m_k = w_k \left((1 - \epsilon)\,t_k + \frac{\epsilon}{n}\right)

    Parameters
    ----------
    z : Tensor, in CPU memory
        This process's part of the scores, as in `softargmax.parallel.softmax`.
    target : Tensor
        The class of each row, from 0 to the number of all classes, equal in all processes. Or this process's part of
        the probabilities.
    group : ProcessGroup or DeviceMesh, optional
        As in `softargmax.parallel.softmax`.
    **options
        The options of `softargmax.cross_entropy`. `weight` and `where` are this process's part, all others are equal in
        all processes. Sums and numbers of classes, as in label smoothing, are those of the whole rows.

    Returns
    -------
    Tensor
        One number, or one per row if `reduction` is "none", in all processes. It has the bits of
        `softargmax.cross_entropy` of the whole rows.

    Raises
    ------
    IndexError
        If a class is out of range.
    NotImplementedError, RuntimeError, TypeError, ValueError
        As in `softargmax.parallel.softmax`.

    Notes
    -----
    Gradient: as in `softargmax.cross_entropy`. That of z has the same bits. Those of a temperature, weights and
    probabilities agree to rounding, and so do second derivatives. Every process passes the same incoming gradient.

    References
    ----------
    Shoeybi et al. (2019), Megatron-LM, section 3 (parallel cross-entropy). arXiv:1909.08053.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> softargmax.parallel.cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), label_smoothing=0.1)
    tensor(0.6931)
    >>> dist.destroy_process_group()
    """
    return spread(whole_cross_entropy, z, target, group=group, **options)


@in_graphs(whole_cross_entropy_terms, results=CrossEntropyTerms)
@takes_options_of(whole_cross_entropy_terms)
def cross_entropy_terms(z: Tensor, /, target: Tensor, *, group: Group = None, **options: Any) -> CrossEntropyTerms:
    r"""Return the cross-entropy with lse, entropy and z-loss of scores whose classes are spread over processes.

    .. math::
        \ell, \qquad \mathrm{lse} = \log \sum_k e^{x_k}, \qquad H = -\sum_k p_k \log p_k, \qquad c\,\mathrm{lse}^2

    Parameters
    ----------
    z, target, group
        As in `softargmax.parallel.cross_entropy`.
    **options
        The options of `softargmax.cross_entropy_terms`. `weight` and `where` are this process's part.

    Returns
    -------
    CrossEntropyTerms
        loss, lse, entropy and z_loss, in all processes. They have the bits of `softargmax.cross_entropy_terms` of the
        whole rows.

    Raises
    ------
    IndexError, NotImplementedError, RuntimeError, TypeError, ValueError
        As in `softargmax.parallel.cross_entropy`.

    Notes
    -----
    Gradient: each of the four results can be differentiated separately, in all processes.

    References
    ----------
    Wijmans et al. (2025), Cut your losses in large-vocabulary language models. arXiv:2411.09009.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> softargmax.parallel.cross_entropy_terms(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).entropy
    tensor(0.6931)
    >>> dist.destroy_process_group()
    """
    reduction, dtype = options.get("reduction", "mean"), options.get("dtype")
    call = Call(group, "cross_entropy_terms", reduction=reduction, dtype=dtype)

    def terms(z: Any, target: Any, **options: Any) -> Any:
        classes = isinstance(target, torch.Tensor) and not target.is_floating_point()
        if reduction != "mean" or not classes or options.get("weight") is None:
            return whole_cross_entropy_terms(z, target, **options)
        of_rows: dict[str, Any] = {**options, "reduction": "none", "dtype": torch.float64}
        rows = whole_cross_entropy_terms(z, target, **of_rows)
        ignore_index, to = options.get("ignore_index", IGNORE), dtype_of_rows(dtype, z)
        ones = row_weights(target, ignore_index)
        weights = _weights_of_rows(call, target, torch.as_tensor(options["weight"]), ignore_index)
        counts = (weights, ones, ones, weights)
        return CrossEntropyTerms(*(reduced(x, n, to, kept=0, mean=True) for x, n in zip(rows, counts, strict=True)))

    return cast("CrossEntropyTerms", call.run(terms, z, target, **options))


def _weights_of_rows(call: Call, target: Tensor, weight: Tensor, ignore_index: int) -> Any:
    """Return the weight of each row's class, which one of the processes has."""
    axes = SpreadAxes((-1,), spread_text(call.group, call.sizes(Facts(weight.shape[0], []))))
    return row_weights(target, ignore_index, weight, axes)


@in_graphs(whole_linear_cross_entropy, together=True)
@takes_options_of(whole_linear_cross_entropy, without=("bias",))
def linear_cross_entropy(
    h: Tensor,
    w: Tensor,
    target: Tensor,
    *,
    group: Group = None,
    bias: Tensor | None = None,
    by: str = "classes",
    reproducible: bool = True,
    **options: Any,
) -> Tensor:
    r"""Return the cross-entropy of a last layer whose classes or rows are spread over the processes of a group.

    .. math:: z = h W^T + b, \qquad \mathrm{cross\_entropy}(z, y)

    Parameters
    ----------
    h : Tensor, in CPU memory
        Hidden vectors (..., D), equal in all processes. With by="rows", those of this process.
    w : Tensor
        This process's rows of W: output weights of shape (classes here, D). The parts of all processes follow each
        other in the order of their ranks, and may have any lengths. With by="rows", all of W.
    target : Tensor
        The class of each row, from 0 to the number of all classes, equal in all processes. Or this process's part of
        the probabilities. With by="rows", the classes or probabilities of this process's rows.
    group : ProcessGroup or DeviceMesh, optional
        As in `softargmax.parallel.softmax`.
    bias : Tensor, optional
        This process's part of b. With by="rows", all of b.
    by : {"classes", "rows"}
        What is spread. Parts may have any lengths, and follow each other in the order of the ranks.
    reproducible : bool
        If True, the gradient of h is added up in the order of the processes, and has the bits of one process. If False,
        it is added up by `all_reduce`, which takes less time with many processes, and agrees to rounding. With
        by="rows", the same holds for the gradients of W and b.
    **options
        The options of `softargmax.linear_cross_entropy`. `weight` and `where` are this process's part, all others are
        equal in all processes. With by="rows", `weight` has all classes, and so does a mask of shape (K,), equal in all
        processes. Other masks, and a temperature of each row, are those of this process's rows.

    Returns
    -------
    Tensor
        One number, or one per row if `reduction` is "none", in all processes. With by="rows", a sum or mean is that of
        the rows of all processes, and "none" returns the losses of this process's rows.

    Raises
    ------
    IndexError, NotImplementedError, RuntimeError, TypeError, ValueError
        As in `softargmax.parallel.cross_entropy`.

    Notes
    -----
    The loss and the gradients with respect to h, W and b have the bits of `softargmax.linear_cross_entropy` of all
    classes and rows. No process holds the scores, and none sends them.

    Gradient: the one of h is the sum over all classes, in every process. If `reproducible`, the processes add to it one
    after the other, in the order in which one process adds, while they compute dW. Each process sends it twice: N D
    numbers, in the dtype of the sums.

    With by="rows", the gradients of W and b are sums over the rows of all processes, in every process: do not add them
    up again. If `reproducible`, a process adds its rows to dW after the process before it, which takes time if it
    computes them in several parts. Each process sends dW and db twice. There are no gradients of temperatures, class
    weights and probabilities, and no second derivatives: they raise NotImplementedError.

    Arrays that are equal in all processes are compared by checksums: h, or with by="rows" W.

    References
    ----------
    Shoeybi et al. (2019), Megatron-LM, section 3 (parallel cross-entropy). arXiv:1909.08053.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> h, w = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]])
    >>> softargmax.parallel.linear_cross_entropy(h, w, torch.tensor([2]))  # w has this process's classes
    tensor(0.0034)
    >>> softargmax.parallel.linear_cross_entropy(h, w, torch.tensor([2]), by="rows")  # h has this process's rows
    tensor(0.0034)
    >>> dist.destroy_process_group()
    """

    def loss(*arrays: Any, **options: Any) -> Any:
        flag(reproducible, "reproducible")
        one_of(by, "by", ("classes", "rows"))
        return whole_linear_cross_entropy(*arrays, **options)

    call = (_ByRows if by == "rows" else Call)(group, "linear_cross_entropy", reproducible=reproducible, by=by)
    if isinstance(call, _ByRows):
        call.one_mask = getattr(options.get("where"), "ndim", 0) == 1 < getattr(h, "ndim", 0)
    return cast("Tensor", call.run(loss, h, w, target, bias=bias, **options))


class _ByRows(Call):
    """A call of a layer whose rows are spread over the processes. All of them have all classes."""

    one_mask = False
    """True if all rows have the same mask. In the record, it looks like the mask of a single row."""

    def axes(self, operation: Any, i: Any, _slots: Sequence[Any]) -> dict[str, int]:
        found = {name: axis for name, axis in operation.rows.items() if name != "loss" or i.kept}
        return {name: axis for name, axis in found.items() if name != "where" or not self.one_mask}

    def layout(self, _operation: Any, have: Layout) -> Layout:
        return whole_blocks(have, _native.DEPTH) if self.in_order else have

    def compared(self, operation: Any, i: Any, out: Any) -> tuple[list[Any], dict[str, int], Layout]:
        options = i.options
        if options.target is not None:  # the kernel would refuse a class in this process alone
            shape = len(i.layer.h), len(i.layer.w)
            in_range(options.target, shape, 1, options.ignore_index, options.named)
        return super().compared(operation, i._replace(by_rows=True), out)


@in_graphs(whole_selected_log_softmax)
@takes_options_of(whole_selected_log_softmax)
def selected_log_softmax(z: Tensor, /, index: Tensor, *, group: Group = None, **options: Any) -> Tensor:
    r"""Return log-probabilities of one or several classes of rows that are spread over the processes of a group.

    .. math:: \log p_y = x_y - \mathrm{lse}, \qquad x = \frac{s \tanh(z / s)}{T}

    Parameters
    ----------
    z, group
        As in `softargmax.parallel.softmax`.
    index : Tensor
        The class of each row, or several along `axis`: numbers from 0 to that of all classes, equal in all processes.
    **options
        The options of `softargmax.selected_log_softmax`. `where` is this process's part.

    Returns
    -------
    Tensor
        The log-probabilities, of the shape of `index`, in all processes. They have the bits of
        `softargmax.selected_log_softmax` of the whole rows.

    Raises
    ------
    IndexError, NotImplementedError, RuntimeError, TypeError, ValueError
        As in `softargmax.parallel.cross_entropy`.

    Notes
    -----
    Each of several classes of a row takes one pass over z, and one exchange of the states of its blocks.

    Gradient: as in `softargmax.selected_log_softmax`, with the same bits. Every process passes the same incoming
    gradient.

    References
    ----------
    Shoeybi et al. (2019), Megatron-LM, section 3 (parallel cross-entropy). arXiv:1909.08053.

    Examples
    --------
    >>> import torch, torch.distributed as dist, softargmax
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> softargmax.parallel.selected_log_softmax(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor([-0.6931])
    >>> dist.destroy_process_group()
    """
    call = Call(group, "selected_log_softmax", index=tuple(getattr(index, "shape", ())))
    return cast("Tensor", call.run(whole_selected_log_softmax, z, index, **options))
