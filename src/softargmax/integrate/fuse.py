"""Train causal language models with a loss that never stores their logits."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss

from softargmax.loss import linear_cross_entropy

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def fuse(model: PreTrainedModel) -> PreTrainedModel:
    r"""Let a causal language model compute its loss with `linear_cross_entropy`, in training.

    .. math:: \ell = \frac{1}{N} \sum_{n} \Big(\log \sum_k e^{z_{nk}} - z_{n y_{n+1}}\Big), \qquad
        z = c \tanh\!\Big(\frac{s\,(h W^T + b)}{c}\Big)

    In training mode, a call with labels returns the model's own loss, up to rounding, and None in place of the logits.
    The matrix z is never stored. Other calls do not change. The model runs its own code up to its head, so what it adds
    to the loss (the auxiliary loss of experts) remains.

    Parameters
    ----------
    model : PreTrainedModel
        A model of a class `...ForCausalLM`, which is changed in place.

    Returns
    -------
    PreTrainedModel
        The same model.

    Raises
    ------
    TypeError
        If the model or its head has the wrong type. A LoRA on the head is refused.
    ValueError
        If the model is fused already, has another loss than a shifted cross-entropy, or changes its logits in another
        way than by a factor s and a soft-cap c. A call raises it if the weight of the head is sharded or offloaded:
        gather it first.

    Notes
    -----
    `fuse` runs the model once, on 16 tokens, to see what the model does to its logits between its head and its loss.

    Labels equal to -100 do not count. `num_items_in_batch` replaces N, and `shift_labels` replaces the shifted labels,
    as in transformers. Gradients of tied weights are the sums of both uses, as in the model.

    See Also
    --------
    softargmax.linear_cross_entropy : the loss.
    unfuse : gives the model its own loss again.

    References
    ----------
    Wijmans et al. (2025), Cut your losses in large-vocabulary language models. arXiv:2411.09009.

    Examples
    --------
    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from softargmax.integrate import fuse
    >>> config = LlamaConfig(
    ...     vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    ... )
    >>> model, tokens = LlamaForCausalLM(config).train(), torch.arange(10)[None]
    >>> loss = model(tokens, labels=tokens).loss
    >>> output = fuse(model)(tokens, labels=tokens)
    >>> bool((output.loss - loss).abs() < 1e-6), output.logits is None
    (True, True)
    """
    if not hasattr(model, "get_output_embeddings"):
        raise TypeError(f"model: expected a language model of transformers, got {type(model).__name__}")
    if _hook_of(model) is not None:
        raise ValueError(f"model: this {type(model).__name__} is fused already")
    if model.loss_function is not ForCausalLMLoss:
        raise ValueError(f"model: expected the loss of a causal language model, got that of {type(model).__name__}")
    hook = FusedLoss(_change_of_logits(model, _head_of(model)))
    before = model.register_forward_pre_hook(hook.before, with_kwargs=True)
    after = model.register_forward_hook(hook.after, with_kwargs=True, always_call=True)
    hook.handles = (before, after)
    return model


def unfuse(model: PreTrainedModel) -> PreTrainedModel:
    """Give a model that `fuse` has changed its own loss again.

    Parameters
    ----------
    model : PreTrainedModel
        A fused model, which is changed in place.

    Returns
    -------
    PreTrainedModel
        The same model.

    Raises
    ------
    ValueError
        If the model is not fused.

    Examples
    --------
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from softargmax.integrate import fuse, unfuse
    >>> config = LlamaConfig(
    ...     vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    ... )
    >>> model = unfuse(fuse(LlamaForCausalLM(config)))
    """
    hook = _hook_of(model)
    if hook is None:
        raise ValueError(f"model: expected a fused model, got a {type(model).__name__} that is not fused")
    for handle in hook.handles:
        handle.remove()
    return model


class Change(NamedTuple):
    """What a model does to its logits between head and loss: z becomes cap tanh(scale z / cap)."""

    scale: float
    cap: float | None


class FusedLoss:
    """The hooks before and after a call. In between, the head keeps its input, and the loss applies the head to it."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self.handles: tuple[Any, ...] = ()
        self.asked: list[tuple[Any, bool] | None] = []  # for each running call: what to restore, and the kind of result

    def before(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        self.asked.append(None)
        given = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
        given = given | given.get("kwargs", {})
        if not model.training or (given.get("labels") is None and given.get("shift_labels") is None):
            return None
        head = _head_of(model)
        as_dict = kwargs.get("return_dict")
        self.asked[-1] = vars(head).get("forward"), model.config.return_dict if as_dict is None else as_dict
        kept: list[Tensor] = []
        head.forward = _keeps(kept, lambda h: h.new_zeros(*h.shape[:-1], 1))
        model.loss_function = self.loss_of(head, kept)
        return args, kwargs | {"return_dict": True}

    def after(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        asked = self.asked.pop()
        if asked is None:
            return None
        _restore(model, asked[0])
        if output is None:  # the call has failed
            return None
        output = type(output)(**{name: value for name, value in output.items() if name != "logits"})
        return output if asked[1] else output.to_tuple()

    def loss_of(self, head: Any, kept: list[Tensor]) -> Any:
        """Return a function with the arguments of transformers' `ForCausalLMLoss`."""

        def loss(
            logits: Tensor,
            labels: Tensor,
            vocab_size: int | None = None,
            num_items_in_batch: Tensor | int | None = None,
            ignore_index: int = -100,
            shift_labels: Tensor | None = None,
            **_: Any,
        ) -> Tensor:
            h, bias, scale = kept.pop(), head.bias, self.change.scale
            if scale != 1:
                h, bias = h * scale, None if bias is None else bias * scale
            if shift_labels is None:
                shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
            total: Tensor = linear_cross_entropy(
                h.flatten(0, -2),
                head.weight,
                shift_labels.flatten().to(h.device),
                bias=bias,
                softcap=self.change.cap,
                ignore_index=ignore_index,
                reduction="mean" if num_items_in_batch is None else "sum",
                dtype=torch.promote_types(h.dtype, torch.float32),
            )
            return total if num_items_in_batch is None else total / num_items_in_batch

        return loss


def _hook_of(model: torch.nn.Module) -> FusedLoss | None:
    owners = (getattr(hook, "__self__", None) for hook in model._forward_pre_hooks.values())
    return next((owner for owner in owners if isinstance(owner, FusedLoss)), None)


def _head_of(model: Any) -> Any:
    """Return the head of a model, or raise an error if `linear_cross_entropy` cannot apply it."""
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        raise TypeError(
            f"model: expected a head of type torch.nn.Linear, got {type(head).__name__}; merge or remove an adapter on "
            "the head first"
        )
    if type(head.weight) is not torch.nn.Parameter or head.weight.is_meta or head.weight.ndim != 2:
        raise ValueError(
            "model: expected all of the head's weight in memory; it is sharded or offloaded, gather it first"
        )
    return head


def _keeps(kept: list[Tensor], out: Any) -> Any:
    """Return a forward function for the head, which appends its input to `kept` and returns `out` of it."""

    def forward(h: Tensor) -> Any:
        kept.append(h)
        return out(h)

    return forward


def _restore(model: Any, forward: Any) -> None:
    """Give the model its own loss and its head the own forward function."""
    del model._loss_function
    head = model.get_output_embeddings()
    if forward is None:
        del head.forward
    else:
        head.forward = forward


def _change_of_logits(model: Any, head: Any) -> Change:
    """Return what the model does to its logits, from a call with known logits in place of the head's."""
    known = torch.tensor([0, 2.0**-12, -1, 1, 3, -8, 20, 33, -50, 90, 150, -400, 1e3, 1e4, -1e6, 1e6])
    seen: list[Tensor] = []
    kept: list[Tensor] = []

    def loss(logits: Tensor, labels: Tensor, *_: Any, **__: Any) -> Tensor:
        seen.append(logits)
        return logits.sum()

    tokens = torch.ones(1, len(known), dtype=torch.long, device=head.weight.device)
    forward, modes = vars(head).get("forward"), [(part, part.training) for part in model.modules()]
    head.forward = _keeps(kept, lambda h: known.to(h.device)[None, -h.shape[-2] :, None])
    model.loss_function = loss
    try:
        with torch.no_grad():
            model.eval()(tokens, labels=tokens)
    finally:
        _restore(model, forward)
        for part, training in modes:
            part.training = training
    if len(seen) == len(kept) == 1 and seen[0].numel() == len(known):
        found = seen[0].flatten().double().cpu()
        small, large = float(found[1] / known[1]), float(found[-1])
        cap = None if math.isclose(large, small * 1e6, rel_tol=1e-5) else large
        z = small * known.double()
        if torch.allclose(found, z if cap is None else cap * torch.tanh(z / cap), rtol=1e-5, atol=0):
            return Change(small, cap)
    raise ValueError(
        f"model: expected logits that are changed by a factor and a soft-cap at most, got another change in "
        f"{type(model).__name__}"
    )
