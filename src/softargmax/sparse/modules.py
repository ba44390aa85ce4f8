"""Entmax, Sparsemax and their losses: torch modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from softargmax.core import check
from softargmax.core.signature import public
from softargmax.core.targets import IGNORE
from softargmax.core.torch_compile import compile_whole
from softargmax.core.torch_modules import check_dim, class_axis, keep, known, one_row, shown
from softargmax.sparse import entmax, entmax_loss
from softargmax.sparse.entmax import order

__all__ = ["Entmax", "EntmaxLoss", "Sparsemax", "SparsemaxLoss"]
compile_whole("softargmax.sparse")  # at import, because a model may be compiled before its first call
fx.wrap("class_axis")

Dim = int | tuple[int, ...] | None


class _WithOrder(nn.Module):
    """Base class with the order and the temperature, each of which is a number, a buffer or a parameter."""

    alpha: float | Tensor
    temperature: float | Tensor

    @public
    def __init__(self, alpha: float | Tensor, temperature: float | Tensor) -> None:
        super().__init__()
        keep(self, "alpha", alpha if isinstance(alpha, Tensor) else order(alpha, torch.empty(0), (0,)))
        check.scale_of(known(temperature, "temperature"), None, torch.empty(0), (0,))
        keep(self, "temperature", temperature)

    def _shown(self, *others: str) -> str:
        """Return the options for the repr: `others`, and the temperature unless it is 1."""
        has_temperature = isinstance(self.temperature, Tensor) or self.temperature != 1.0
        return ", ".join([*others, f"temperature={shown(self.temperature)}"] if has_temperature else others)


class Entmax(_WithOrder):
    r"""Entmax along `dim`, as a module: sparse probabilities.

    .. math:: p_i = [(\alpha - 1) z_i / T - \tau]_+^{1/(\alpha - 1)}, \qquad \sum_i p_i = 1

    Parameters
    ----------
    alpha : float, Tensor or Parameter
        The order, above 0: one number, or one per row. A `torch.nn.Parameter` is learned. Keep it above 0, for example
        with softplus or 1 + sigmoid. Any other tensor becomes a buffer.
    dim : int, tuple of int or None
        The axis or axes of a row of scores. None means all axes.
    temperature : float, Tensor or Parameter
        T: one number, or one per row. A `torch.nn.Parameter` is learned. Any other tensor becomes a buffer.

    Notes
    -----
    Call the module with the scores z, a tensor of any shape, and optionally `where`, a boolean mask that broadcasts
    with z. Edge rows and gradients are those of `softargmax.entmax`.

    See Also
    --------
    softargmax.entmax : the function.

    Examples
    --------
    >>> import torch, softargmax
    >>> softargmax.nn.Entmax(1.5)(torch.tensor([1.0, 2.0, 2.5]))
    tensor([0.0048, 0.324, 0.671])
    >>> alpha = torch.nn.Parameter(torch.tensor(1.5))
    >>> softargmax.nn.Entmax(alpha)(torch.tensor([1.0, 2.0, 2.5]))[0].backward()
    >>> alpha.grad
    tensor(-0.182)
    """

    @public
    def __init__(self, alpha: float | Tensor = 1.5, dim: Dim = -1, *, temperature: float | Tensor = 1.0) -> None:
        super().__init__(alpha, temperature)
        check_dim(dim)
        self.dim = dim

    def forward(self, z: Tensor, where: Tensor | None = None) -> Tensor:
        p: Tensor = entmax(z, self.alpha, axis=self.dim, temperature=self.temperature, where=where)
        return p

    if TYPE_CHECKING:

        def __call__(self, z: Tensor, where: Tensor | None = None) -> Tensor: ...

    def extra_repr(self) -> str:
        return self._shown(f"alpha={shown(self.alpha)}", f"dim={self.dim}")


class Sparsemax(Entmax):
    r"""Sparsemax along `dim`, as a module: the projection on the probability simplex.

    .. math:: p_i = [z_i / T - \tau]_+, \qquad \sum_i p_i = 1

    Parameters
    ----------
    dim, temperature
        As in `Entmax`.

    Notes
    -----
    This is `Entmax` of order 2. It is called in the same way.

    See Also
    --------
    softargmax.sparsemax : the function.

    Examples
    --------
    >>> import torch, softargmax
    >>> softargmax.nn.Sparsemax()(torch.tensor([1.0, 2.0, 2.5]))
    tensor([0., 0.25, 0.75])
    """

    @public
    def __init__(self, dim: Dim = -1, *, temperature: float | Tensor = 1.0) -> None:
        super().__init__(2.0, dim, temperature=temperature)

    def extra_repr(self) -> str:
        return self._shown(f"dim={self.dim}")


class EntmaxLoss(_WithOrder):
    r"""The Fenchel-Young loss of entmax as a module, with the class axis of `torch.nn.CrossEntropyLoss`.

    .. math:: \ell = w_y \left(\langle p - t, z / T\rangle + H_\alpha(p) - H_\alpha(t)\right)

    Parameters
    ----------
    alpha : float, Tensor or Parameter
        The order, as in `Entmax`.
    weight : Tensor, optional
        Class weights, one per class. The weights become a buffer.
    ignore_index, reduction, label_smoothing
        As in `softargmax.entmax_loss`. These are keyword-only.
    temperature : float, Tensor or Parameter
        T, as in `Entmax`. It is keyword-only.

    Notes
    -----
    Call the module with scores (K,), (N, K) or (N, K, d1, ...), a target, and optionally `where`, a boolean mask that
    broadcasts with the scores. The K classes run along axis 1, or along axis 0 of scores (K,). (The default of
    `softargmax.entmax_loss` is the last axis.) Edge rows and gradients are those of `softargmax.entmax_loss`.

    See Also
    --------
    softargmax.entmax_loss : the function.

    Examples
    --------
    >>> import torch, softargmax
    >>> z = torch.tensor([[1.0, 2.0, 2.5]], requires_grad=True)
    >>> softargmax.nn.EntmaxLoss()(z, torch.tensor([1])).backward()
    >>> z.grad
    tensor([[ 0.0048, -0.6760,  0.6712]])
    """

    weight: Tensor | None

    @public
    def __init__(
        self,
        alpha: float | Tensor = 1.5,
        weight: Tensor | None = None,
        *,
        ignore_index: int = IGNORE,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        temperature: float | Tensor = 1.0,
    ) -> None:
        super().__init__(alpha, temperature)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        entmax_loss(
            *one_row(weight),
            ignore_index=ignore_index,
            reduction=reduction,
            weight=weight,
            label_smoothing=label_smoothing,
        )

    def forward(self, z: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        loss: Tensor = entmax_loss(
            z,
            target,
            self.alpha,
            axis=class_axis(z),
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            weight=self.weight,
            label_smoothing=self.label_smoothing,
            temperature=self.temperature,
            where=where,
        )
        return loss

    if TYPE_CHECKING:

        def __call__(self, z: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor: ...

    def extra_repr(self) -> str:
        return self._shown(f"alpha={shown(self.alpha)}", f"reduction={self.reduction!r}")


class SparsemaxLoss(EntmaxLoss):
    r"""The loss of sparsemax as a module, with the class axis of `torch.nn.CrossEntropyLoss`.

    .. math:: \ell = \tfrac12 \lVert t - z / T\rVert^2 - \tfrac12 \lVert p - z / T\rVert^2

    Parameters
    ----------
    weight, ignore_index, reduction, label_smoothing, temperature
        As in `EntmaxLoss`.

    Notes
    -----
    This is `EntmaxLoss` of order 2. It is called in the same way.

    See Also
    --------
    softargmax.sparsemax_loss : the function.

    Examples
    --------
    >>> import torch, softargmax
    >>> softargmax.nn.SparsemaxLoss()(torch.tensor([[1.0, 2.0, 2.5]]), torch.tensor([1]))
    tensor(0.562)
    """

    @public
    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = IGNORE,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        temperature: float | Tensor = 1.0,
    ) -> None:
        super().__init__(
            2.0,
            weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            temperature=temperature,
        )

    def extra_repr(self) -> str:
        return self._shown(f"reduction={self.reduction!r}")
