"""Train causal language models with a loss that never stores their logits."""

from __future__ import annotations

import dataclasses
import inspect
import math
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss

from softargmax.loss import linear_cross_entropy, linear_selected_log_softmax
from softargmax.normalize import entropy


def fuse(model: PreTrainedModel, *, metrics: bool = False) -> PreTrainedModel:
    r"""Let a causal language model compute its loss with `linear_cross_entropy`, in training.

    .. math:: \ell = \frac{1}{N} \sum_{n} \Big(\log \sum_k e^{z_{nk}} - z_{n y_{n+1}}\Big), \qquad
        z = c \tanh\!\Big(\frac{s\,(h W^T + b)}{c}\Big)

    In training mode, a call with labels returns the model's own loss, up to rounding, and None in place of the logits.
    The matrix z is never stored. Other calls do not change. The model runs its own code up to its head, so what it adds
    to the loss (the auxiliary loss of experts) remains.

    Parameters
    ----------
    model : PreTrainedModel
        A model of a class `...ForCausalLM`, or one with adapters around it (`peft.get_peft_model`). It is changed in
        place.
    metrics : bool
        If True, outputs also have `entropy` and `token_accuracy`: the mean entropy of the predictions in nats, and the
        share of labels that have the largest score, over the labels that count; 0 if none does. They take one more
        product with W, or about a third more time in head and loss.

    Returns
    -------
    PreTrainedModel
        The same model.

    Raises
    ------
    TypeError
        If the model, its head or `metrics` has the wrong type. A LoRA on the head is refused.
    ValueError
        If the model is fused already, has another loss than a shifted cross-entropy, or changes its logits in another
        way than by a factor s and a soft-cap c. A call raises it if the weight of the head is sharded or offloaded
        (gather it first), and if adapters were put around the model after `fuse`.

    Notes
    -----
    `fuse` runs the model once, on 16 tokens, to see what the model does to its logits between its head and its loss.

    Labels equal to -100 do not count. `num_items_in_batch` replaces N, and `shift_labels` replaces the shifted labels,
    as in transformers. If no label counts, the loss is 0, where transformers returns NaN. Gradients of tied weights are
    the sums of both uses, as in the model.

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
    base = _base_of(model)
    if not isinstance(metrics, bool):
        raise TypeError(f"metrics: expected a bool, got {type(metrics).__name__}")
    if _hook_of(model) or _hook_of(base):
        raise ValueError(f"model: this {type(base).__name__} is fused already")
    if base.loss_function is not ForCausalLMLoss:
        raise ValueError(f"model: expected the loss of a causal language model, got that of {type(base).__name__}")
    head = _head_of(base)
    hook = FusedLoss(_change_of_logits(base, head), metrics)
    hook.handles = [
        model.register_forward_pre_hook(hook.before, with_kwargs=True),
        model.register_forward_hook(hook.after, with_kwargs=True, always_call=True),
        head.register_forward_pre_hook(hook.keep),
    ]
    hook.own_loss = _set_loss(base, hook.loss)
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
    base = _base_of(model)
    if base.loss_function == hook.loss:  # and not a loss that was set after fuse
        _set_loss(base, hook.own_loss)
    return model


SCORES_AT_ONCE = 1 << 22
"""The number of scores that the metrics hold at a time: 16 MiB."""


class Change(NamedTuple):
    """What a model does to its logits between head and loss: z becomes cap tanh(scale z / cap)."""

    scale: float
    cap: float | None


@dataclasses.dataclass
class Call:
    """A running call with labels: the kinds of results that it wants, the head with its input, and the metrics."""

    as_dict: bool
    per_token: bool
    head: Any = None
    h: Any = None
    metrics: dict[str, Tensor] = dataclasses.field(default_factory=dict)


class FusedLoss:
    """The hooks and the loss of a fused model. The head keeps its input, and the loss applies the head to it.

    The replicas of `torch.nn.DataParallel` share the hooks, so each thread has its own call, or None during a call that
    needs its logits. The next call of a thread replaces what an interrupted call has left. The compiler leaves the
    hooks out of its graphs, because they are no functions of tensors.
    """

    def __init__(self, change: Change, metrics: bool) -> None:
        self.change = change
        self.metrics = metrics
        self.own_loss: Any = None
        self.handles: list[Any] = []
        self.calls: dict[int, Call | None] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def before(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """Begin a call."""
        self.calls[get_ident()] = None
        given = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
        given = given | given.get("kwargs", {})
        if not model.training or given.get("labels") is None:
            return None
        base = _base_of(model)
        if base.loss_function != self.loss:
            raise ValueError("model: expected the loss that fuse has set, got another one; set it before fuse")
        head = _head_of(base)
        if self.keep not in head._forward_pre_hooks.values():  # resize_token_embeddings makes a new head
            self.handles.append(head.register_forward_pre_hook(self.keep))
        as_dict, per_token = given.get("return_dict"), bool(given.get(FUSED_HEAD))
        if per_token:
            _check_trl(base)
            kwargs = {name: value for name, value in kwargs.items() if name != FUSED_HEAD}
        self.calls[get_ident()] = Call(base.config.return_dict if as_dict is None else as_dict, per_token)
        return args, kwargs | {"return_dict": True}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def keep(self, head: Any, args: tuple[Tensor, ...]) -> Tensor | None:
        """Keep the input of the head, and give the head none of its rows."""
        call = self.calls.get(get_ident())
        if call is None or call.h is not None:
            return None
        call.head, call.h = head, args[0]
        return args[0][..., :0, :].detach()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def loss(
        self,
        logits: Tensor,
        labels: Any,
        vocab_size: Any = None,
        num_items_in_batch: Any = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """Return the loss. The arguments are those of transformers' `ForCausalLMLoss`."""
        if get_ident() not in self.calls:
            raise ValueError(
                "model: expected a call of the model that was fused, got one of its forward function, as by "
                "adapters that were put around it later; fuse the outermost model"
            )
        call = self.calls[get_ident()]
        if call is None:
            return ForCausalLMLoss(logits, labels, vocab_size, num_items_in_batch, ignore_index, shift_labels, **others)
        h, weight, bias, scale = call.h, call.head.weight, call.head.bias, self.change.scale
        if scale != 1:
            h, bias = h * scale, None if bias is None else bias * scale
        last = shift_labels is None  # the last token of a text has no label
        if shift_labels is None:
            shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        shape, h, y = shift_labels.shape, h.flatten(0, -2), shift_labels.flatten().to(h.device)
        options: dict[str, Any] = {"bias": bias, "softcap": self.change.cap, "ignore_index": ignore_index}
        options["dtype"] = torch.promote_types(h.dtype, torch.float32)
        counted = y != ignore_index
        rows: dict[str, Tensor] = {}
        if self.metrics or call.per_token:
            rows = metrics_of(h[counted], weight, bias, y[counted], self.change.cap)
            call.metrics = {name: x.sum() / max(len(x), 1) for name, x in rows.items()}
        if call.per_token:
            log_probs: Tensor = linear_selected_log_softmax(h, weight, y, **options)
            found = {"log_probs": log_probs, "label_mask": counted, **for_trl(rows, counted)}
            call.metrics = {name: x.reshape(shape)[..., : shape[-1] - last] for name, x in found.items()}
            return -log_probs.sum() / counted.sum().clamp(min=1)
        reduction = "mean" if num_items_in_batch is None else "sum"
        loss: Tensor = linear_cross_entropy(h, weight, y, reduction=reduction, **options)
        if isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(loss.device)
        return loss if num_items_in_batch is None else loss / num_items_in_batch

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def after(self, _model: Any, _args: Any, _kwargs: Any, output: Any) -> Any:
        """End a call, which may have failed. Leave the logits out of its result."""
        call = self.calls.pop(get_ident(), None)
        if call is None or output is None:
            return None
        output = type(output)(**{name: value for name, value in output.items() if name != "logits"})
        for name, value in call.metrics.items():
            output[name] = value
        return output if call.as_dict else output.to_tuple()


@torch.no_grad()
def metrics_of(h: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, cap: float | None) -> dict[str, Tensor]:
    """Return the entropy of each row, and True if its label has the largest score. Few scores are held at a time."""
    entropies, right = [], []
    rows = max(1, SCORES_AT_ONCE // len(weight))
    for part, wanted in zip(torch.split(h, rows), torch.split(y, rows), strict=True):
        z = torch.nn.functional.linear(part, weight, bias).float()
        z = z if cap is None else cap * torch.tanh(z / cap)
        entropies.append(entropy(z))
        right.append(z.argmax(-1) == wanted)
    return {"entropy": torch.cat(entropies), "token_accuracy": torch.cat(right)}


def for_trl(rows: dict[str, Tensor], counted: Tensor) -> dict[str, Tensor]:
    """Return the metrics of all tokens under the names of TRL. They are 0 where `counted` is False."""
    whole = [x.new_zeros(len(counted)).masked_scatter(counted, x) for x in rows.values()]
    return dict(zip(("entropy", "is_top1"), whole, strict=True))


FUSED_HEAD = "fused_lm_head"
"""The argument with which trainers of TRL ask for numbers of each token in place of logits."""


def _check_trl(model: Any) -> None:
    """Raise ValueError unless TRL asks for what its SFTTrainer needs. Nothing but TRL's own function knows."""

    def knows(function: Any) -> bool:
        return "temperature" in getattr(getattr(function, "__code__", None), "co_freevars", ())

    function = inspect.unwrap(model.forward, stop=knows)
    asked = inspect.getclosurevars(function).nonlocals if knows(function) else {}
    found = [asked.get(name) for name in ("temperature", "cast_lm_head_to_fp32", "outputs")]
    if found != [1, False, ("log_probs", "entropy", "is_top1")]:
        raise ValueError(
            f"{FUSED_HEAD}: expected the SFTTrainer of TRL, got another use of TRL's own fused head, which stores no "
            "logits either; call unfuse(model) first"
        )


def _hook_of(model: Any) -> FusedLoss | None:
    owners = (getattr(hook, "__self__", None) for hook in getattr(model, "_forward_pre_hooks", {}).values())
    return next((owner for owner in owners if isinstance(owner, FusedLoss)), None)


def _base_of(model: Any) -> Any:
    """Return the language model, which adapters may surround."""
    inside = getattr(model, "get_base_model", None)
    base = inside() if inside is not None and not isinstance(model, PreTrainedModel) else model
    if not isinstance(base, PreTrainedModel):
        raise TypeError(f"model: expected a language model of transformers, got {type(base).__name__}")
    return base


def _head_of(model: Any) -> Any:
    """Return the head of a model, or raise an error if `linear_cross_entropy` cannot apply it."""
    head = model.get_output_embeddings()
    if head is None:
        raise TypeError(f"model: expected a model with a head, got {type(model).__name__}")
    if type(head) is not torch.nn.Linear:
        raise TypeError(
            f"model: expected a head of type torch.nn.Linear, got {type(head).__module__}.{type(head).__name__}; merge "
            "or remove an adapter on the head first"
        )
    # A replica of torch.nn.DataParallel has a tensor in place of the parameter. A shard has a type of its own.
    if type(head.weight) not in (torch.nn.Parameter, Tensor) or head.weight.is_meta or head.weight.ndim != 2:
        raise ValueError(
            "model: expected all of the head's weight in memory; it is sharded or offloaded, gather it first"
        )
    return head


def _change_of_logits(model: Any, head: Any) -> Change:
    """Return what the model does to its logits, from a call with known logits in place of the head's."""
    known = torch.tensor([0, 2.0**-12, -1, 1, 3, -8, 20, 33, -50, 90, 150, -400, 1e3, 1e4, -1e6, 1e6])
    seen: list[Tensor] = []

    def loss(logits: Tensor, *_: Any, **__: Any) -> Tensor:
        seen.append(logits)
        return logits.sum()

    def replace(_head: Any, _args: Any, z: Tensor) -> Tensor:
        return known.to(z.device)[None, -z.shape[-2] :, None].repeat(1, 1, z.shape[-1])

    tokens = torch.ones(1, len(known), dtype=torch.long, device=head.weight.device)
    modes = [(part, part.training) for part in model.modules()]
    handle, own = head.register_forward_hook(replace), _set_loss(model, loss)
    try:
        with torch.no_grad():
            model.eval()(tokens, labels=tokens)
    except Exception as error:
        raise ValueError(
            f"model: expected a {type(model).__name__} that runs on {len(known)} tokens with labels, got {error!r}"
        ) from error
    finally:
        handle.remove()
        _set_loss(model, own)
        for part, training in modes:
            part.training = training
    if len(seen) != 1:
        raise ValueError(f"model: expected one call of loss_function in {type(model).__name__}, got {len(seen)}")
    if seen[0].numel() == len(known) * head.out_features:
        found = seen[0].reshape(len(known), -1).double().cpu()
        small, large = float(found[1, 0] / known[1]), float(found[-1, 0])
        cap = None if math.isclose(large, small * 1e6, rel_tol=1e-5) else large
        z = small * known.double()[:, None].expand_as(found)
        if torch.allclose(found, z if cap is None else cap * torch.tanh(z / cap), rtol=1e-5, atol=0):
            return Change(small, cap)
    raise ValueError(
        f"model: expected logits that are changed by a factor and a soft-cap at most, got another change in "
        f"{type(model).__name__}"
    )


def _set_loss(model: Any, loss: Any) -> Any:
    """Give a model a loss of its own, or with None that of its class. Return the one before."""
    own = vars(model).pop("_loss_function", None)
    if loss is not None:
        model.loss_function = loss
    return own
