"""The losses as torch modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack, get_type_hints

from torch import Tensor, fx, nn

from softargmax.core.signature import public
from softargmax.core.torch_compile import compile_whole
from softargmax.core.torch_modules import class_axis, keep, known, one_row, shown
from softargmax.loss import cross_entropy, linear_cross_entropy
from softargmax.loss.check_options import DEFAULTS, LinearKeywords, ModuleKeywords, takes

__all__ = ["CrossEntropyLoss", "LinearCrossEntropyLoss"]
_NAMES = tuple(get_type_hints(ModuleKeywords))
compile_whole("softargmax.loss")  # at import, because a model may be compiled before its first call
fx.wrap("class_axis")


class _CrossEntropy(nn.Module):
    """Base class of CrossEntropyLoss and LinearCrossEntropyLoss. Each option is an attribute."""

    weight: Tensor | None

    @public
    def __init__(self, weight: Tensor | None = None, **options: Unpack[ModuleKeywords]) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        temperature = known(options.get("temperature", 1.0), "temperature")
        cross_entropy(*one_row(weight), **{**options, "weight": weight, "temperature": temperature})
        for name in _NAMES:
            keep(self, name, options.get(name, DEFAULTS.get(name)))

    def _options(self, where: Tensor | None = None) -> LinearKeywords:
        options = {"weight": self.weight, **{name: getattr(self, name) for name in _NAMES}, "where": where}
        return {name: x for name, x in options.items() if not _is_default(name, x)}  # type: ignore[return-value]

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={shown(x)}" for name, x in self._options().items())


def _is_default(name: str, x: Any) -> bool:
    """True if the option has its default value, so that the call can leave it out."""
    default = DEFAULTS.get(name)
    return x is None or (type(x) is type(default) and x == default)


class CrossEntropyLoss(_CrossEntropy):
    r"""Cross-entropy loss as a module, with the arguments and the class axis of `torch.nn.CrossEntropyLoss`.

    .. math:: \ell = -\sum_k m_k \log p_k + c\,\mathrm{lse}^2

    Parameters
    ----------
    weight : Tensor, optional
        One weight per class, of shape (K,). The module registers it as a buffer.
    ignore_index, reduction, label_smoothing
        As in `torch.nn.CrossEntropyLoss` and `softargmax.cross_entropy`. These are keyword arguments.
    z_loss, softcap, temperature
        As in `softargmax.cross_entropy`. These are keyword arguments. A temperature that is a `torch.nn.Parameter` is
        learned.

    Notes
    -----
    Call the module with scores and a target, and optionally with `where`, a boolean mask that broadcasts with the
    scores. Scores have shape (K,), (N, K) or (N, K, d1, ...). Classes run along axis 1. (In the function they run along
    the last axis by default.) If all rows are ignored, the mean is 0 (torch: NaN). Edge rows and gradients are as in
    `softargmax.cross_entropy`.

    See Also
    --------
    softargmax.cross_entropy : the loss as a function.

    Examples
    --------
    >>> import torch, softargmax
    >>> softargmax.nn.CrossEntropyLoss()(torch.tensor([[20.0, 0.0]]), torch.tensor([0]))
    tensor(2.06e-09)
    """

    @takes(ModuleKeywords)
    def __init__(self, weight: Tensor | None = None, **options: Unpack[ModuleKeywords]) -> None:
        super().__init__(weight, **options)

    def forward(self, z: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor:
        loss: Tensor = cross_entropy(z, target, axis=class_axis(z), **self._options(where))
        return loss

    if TYPE_CHECKING:

        def __call__(self, z: Tensor, target: Tensor, where: Tensor | None = None) -> Tensor: ...


class LinearCrossEntropyLoss(_CrossEntropy):
    r"""Cross-entropy loss of a last layer's scores as a module, without storing the scores.

    .. math:: z = h W^T + b, \qquad \ell = -\sum_k m_k \log p_k + c\,\mathrm{lse}^2

    Parameters
    ----------
    weight, ignore_index, reduction, label_smoothing, z_loss, softcap, temperature
        As in `CrossEntropyLoss`.
    exact : bool
        As in `softargmax.linear_cross_entropy`. This is a keyword argument.

    Notes
    -----
    Call the module with hidden vectors h (..., D), output weights W (K, D) and a target (...) or (..., K), and
    optionally with `bias` (K,) and `where`. W is not a parameter of the module, so you can tie it to an embedding.
    Classes run along the last axis of the scores. (In torch they run along axis 1.) Edge rows and gradients are as in
    `softargmax.linear_cross_entropy`.

    See Also
    --------
    softargmax.linear_cross_entropy : the loss as a function.

    Examples
    --------
    >>> import torch, softargmax
    >>> h, w = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]])
    >>> softargmax.nn.LinearCrossEntropyLoss()(h, w, torch.tensor([2]))
    tensor(0.0034)
    """

    @takes(ModuleKeywords)
    def __init__(self, weight: Tensor | None = None, *, exact: bool = False, **options: Unpack[ModuleKeywords]) -> None:
        super().__init__(weight, **options)
        self.exact = exact

    def forward(
        self, h: Tensor, w: Tensor, target: Tensor, bias: Tensor | None = None, where: Tensor | None = None
    ) -> Tensor:
        loss: Tensor = linear_cross_entropy(h, w, target, bias=bias, exact=self.exact, **self._options(where))
        return loss

    if TYPE_CHECKING:

        def __call__(
            self, h: Tensor, w: Tensor, target: Tensor, bias: Tensor | None = None, where: Tensor | None = None
        ) -> Tensor: ...

    def extra_repr(self) -> str:
        return ", ".join(filter(None, (super().extra_repr(), "exact=True" if self.exact else "")))
