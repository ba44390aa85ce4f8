"""GumbelSoftmax, a torch module for relaxed draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from softargmax.core.signature import public
from softargmax.core.torch_modules import check_dim, keep, known, shown
from softargmax.core.torch_operation import register
from softargmax.sample import gumbel_softmax
from softargmax.sample.check_options import parameter

__all__ = ["GumbelSoftmax"]
register("softargmax.sample")  # at import, because a model may be compiled before its first call


class GumbelSoftmax(nn.Module):
    r"""Relaxed draws from the softmax along `dim`, as a module.

    .. math:: y = \mathrm{softmax}\!\left(\frac{z + g}{T}\right)

    Parameters
    ----------
    dim : int
        The axis of the classes.
    temperature : float or Tensor
        T as in `softargmax.gumbel_softmax`. A `torch.nn.Parameter` is learned. Any other tensor becomes a buffer.
    hard : bool
        If True, return a one-hot vector with the gradient of y.

    Notes
    -----
    Call the module with scores, and optionally with `where` and a `torch.Generator`. Without a generator, the noise
    comes from torch's default generator. The module also draws in evaluation mode. Edge rows and gradients are as in
    `softargmax.gumbel_softmax`.

    See Also
    --------
    softargmax.gumbel_softmax : relaxed draws as a function.

    Examples
    --------
    >>> import torch, softargmax
    >>> softargmax.nn.GumbelSoftmax(hard=True)(torch.tensor([0.0, 0.0, 60.0]))
    tensor([0., 0., 1.])
    """

    temperature: float | Tensor

    @public
    def __init__(self, dim: int = -1, *, temperature: float | Tensor = 1.0, hard: bool = False) -> None:
        super().__init__()
        check_dim(dim, one=True)
        parameter(known(temperature, "temperature"), torch.empty(1), "temperature")
        self.dim = dim
        self.hard = hard
        keep(self, "temperature", temperature)

    def forward(self, z: Tensor, where: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        y: Tensor = gumbel_softmax(
            z, axis=self.dim, temperature=self.temperature, hard=self.hard, where=where, generator=generator
        )
        return y

    if TYPE_CHECKING:

        def __call__(
            self, z: Tensor, where: Tensor | None = None, generator: torch.Generator | None = None
        ) -> Tensor: ...

    def extra_repr(self) -> str:
        return f"dim={self.dim}, temperature={shown(self.temperature)}, hard={self.hard}"
