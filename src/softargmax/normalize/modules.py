"""Softmax and LogSoftmax: torch modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from softargmax.core import check
from softargmax.core.signature import public
from softargmax.core.torch_modules import check_dim, keep, known, shown
from softargmax.core.torch_operation import register
from softargmax.normalize import log_softmax, softmax

__all__ = ["LogSoftmax", "Softmax"]
register("softargmax.normalize")  # at import, because a model may be compiled before its first call

Dim = int | tuple[int, ...] | None


class _Normalizer(nn.Module):
    """Base class of Softmax and LogSoftmax. It checks and stores their options."""

    temperature: float | Tensor

    @public
    def __init__(
        self,
        dim: Dim = -1,
        *,
        temperature: float | Tensor = 1.0,
        base: float | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_dim(dim)
        _check_options(temperature, base, dtype)
        self.dim = dim
        self.base = base
        self.dtype = dtype
        keep(self, "temperature", temperature)

    def extra_repr(self) -> str:
        options = [f"dim={self.dim}"]
        if isinstance(self.temperature, Tensor) or self.temperature != 1.0:
            options.append(f"temperature={shown(self.temperature)}")
        options += [f"{name}={value}" for name in ("base", "dtype") if (value := getattr(self, name)) is not None]
        return ", ".join(options)


def _check_options(temperature: Any, base: Any, dtype: Any) -> None:
    """Check the options when a module is created. The dtype of a temperature tensor is checked, but not its values."""
    z = torch.empty(0)
    check.scale_of(known(temperature, "temperature"), base, z, (0,))
    if dtype is not None:
        check.float_dtype(dtype, z)


class Softmax(_Normalizer):
    r"""Softmax along `dim`, as a module.

    .. math:: p_i = \frac{e^{\beta z_i}}{\sum_j e^{\beta z_j}}, \qquad \beta = \frac{\ln(\mathrm{base})}{T}

    Parameters
    ----------
    dim : int, tuple of int or None
        The axis or axes to normalise along; None for all of them. (`torch.nn.Softmax` guesses an axis for None.)
    temperature : float, Tensor or Parameter
        T: one number, or one per row. A `torch.nn.Parameter` is learned. Any other tensor becomes a buffer.
    base : float, optional
        Base of the exponentials; defaults to e.
    dtype : torch.dtype, optional
        dtype of the result; defaults to that of the scores.

    Notes
    -----
    Call the module with the scores z (a tensor of any shape) and optionally `where` (a boolean mask that broadcasts
    with z). Edge rows and gradients are as in `softargmax.softmax`. Probability and gradient are exactly 0 outside the
    support. A row with an empty support is all 0.

    See Also
    --------
    softargmax.softmax : the function.

    Examples
    --------
    >>> import torch, softargmax
    >>> softargmax.nn.Softmax(dim=1)(torch.tensor([[1.0, 2.0, 8.0]]))
    tensor([[9.0e-04, 2.5e-03, 0.997]])
    >>> temperature = torch.nn.Parameter(torch.tensor(10.0))
    >>> softargmax.nn.Softmax(temperature=temperature)(torch.tensor([0.0, 10.0])).detach()
    tensor([0.269, 0.731])
    """

    def forward(self, z: Tensor, where: Tensor | None = None) -> Tensor:
        p: Tensor = softmax(
            z, axis=self.dim, temperature=self.temperature, base=self.base, where=where, dtype=self.dtype
        )
        return p

    if TYPE_CHECKING:

        def __call__(self, z: Tensor, where: Tensor | None = None) -> Tensor: ...


class LogSoftmax(_Normalizer):
    r"""Logarithm of the softmax along `dim`, as a module.

    .. math:: \log p_i = \beta z_i - \log \sum_j e^{\beta z_j}, \qquad \beta = \frac{\ln(\mathrm{base})}{T}

    Parameters
    ----------
    dim, temperature, base, dtype
        As in `Softmax`. The result is a natural logarithm for every base.

    Notes
    -----
    Call it like `Softmax`. Edge rows and gradients are as in `softargmax.log_softmax`. Outside the support the result
    is -inf and the gradient is exactly 0.

    See Also
    --------
    softargmax.log_softmax : the function.

    Examples
    --------
    >>> import torch, softargmax
    >>> softargmax.nn.LogSoftmax()(torch.tensor([40.0, 0.0]))
    tensor([-4.2e-18, -40.0])
    """

    def forward(self, z: Tensor, where: Tensor | None = None) -> Tensor:
        log_p: Tensor = log_softmax(
            z, axis=self.dim, temperature=self.temperature, base=self.base, where=where, dtype=self.dtype
        )
        return log_p

    if TYPE_CHECKING:

        def __call__(self, z: Tensor, where: Tensor | None = None) -> Tensor: ...
