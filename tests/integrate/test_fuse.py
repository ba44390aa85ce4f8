"""`fuse`: the loss of a causal language model without logits."""

from __future__ import annotations

import copy
import math
import pickle
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.integrate.models import DECODERS, model_of, padding, texts  # noqa: E402 after the skip
from transformers.loss.loss_utils import ForCausalLMLoss  # noqa: E402

from softargmax.integrate import fuse, unfuse  # noqa: E402

fuse_module = sys.modules["softargmax.integrate.fuse"]  # the function has the same name

CHANGES: dict[str, dict[str, Any]] = {
    "Gemma2": {"final_logit_softcapping": 3.0},
    "Cohere": {"logit_scale": 0.3},
    "GptOss": {"output_router_logits": True, "router_aux_loss_coef": 0.5},
    "Mixtral": {"output_router_logits": True, "router_aux_loss_coef": 0.5},
    "Qwen2Moe": {"output_router_logits": True, "router_aux_loss_coef": 0.5},
    "Llama": {"tie_word_embeddings": True},
}
CASES = [*((family, {}) for family in DECODERS), *CHANGES.items()]


def trained(family: str, **changes: Any) -> tuple[Any, Any]:
    """Return a fused model and a plain copy, in training mode, with logits of magnitude 10."""
    plain = model_of(family, "eager", **changes).train()
    with torch.no_grad():
        plain.get_output_embeddings().weight *= 20
    return fuse(copy.deepcopy(plain)), plain


def labels() -> Any:
    """Return labels with a prompt and padding that do not count."""
    y = texts().clone()
    y[0, :5] = -100
    y[2, -3:] = -100
    return y


def largest_gradient(model: Any) -> float:
    return max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("family", "changes"), CASES, ids=lambda x: x if isinstance(x, str) else "_".join(x) or "plain"
)
@pytest.mark.parametrize("count", [None, 7, torch.tensor(31)], ids=["mean", "int", "tensor"])
def test_loss_and_gradients_are_the_models_own(family: str, changes: dict[str, Any], count: Any) -> None:
    fused, plain = trained(family, **changes)
    given = {"input_ids": texts(), "labels": labels(), "attention_mask": padding("right")}
    given |= {} if count is None else {"num_items_in_batch": count}
    a, b = (model(**given) for model in (fused, plain))
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-6, atol=0)
    assert a.logits is None
    assert {*a} == {*b} - {"logits"}
    for output in (a, b):
        output.loss.backward()
    for (name, p), q in zip(fused.named_parameters(), plain.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if q.grad is not None:
            assert float((p.grad - q.grad).abs().max()) <= 2e-6 * largest_gradient(plain), name


@pytest.mark.parametrize("whole", [True, False], ids=["bfloat16", "autocast"])
def test_half_precision_is_as_exact_as_the_models_own(whole: bool) -> None:
    fused, plain = trained("Llama")
    given = {"input_ids": texts(), "labels": labels()}
    exact = copy.deepcopy(plain).double()(**given).loss
    for model in (fused, plain) if whole else ():
        model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=not whole):
        errors = [float((model(**given).loss.double() - exact).detach().abs()) for model in (fused, plain)]
    assert errors[0] <= 1.5 * errors[1]


def test_a_bias_of_the_head_counts() -> None:
    plain = model_of("Cohere", "eager", logit_scale=0.3).train()
    head = plain.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.randn(head.out_features, generator=torch.Generator().manual_seed(1)))
    fused = fuse(copy.deepcopy(plain))
    losses = [model(texts(), labels=texts()).loss for model in (fused, plain)]
    torch.testing.assert_close(*losses, rtol=1e-6, atol=0)
    gradients = [
        torch.autograd.grad(x, m.get_output_embeddings().bias)[0] for x, m in zip(losses, (fused, plain), strict=True)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-8)


def test_results_may_be_tuples() -> None:
    fused, plain = trained("Llama")
    given = {"input_ids": texts(), "labels": labels(), "return_dict": False, "use_cache": False}
    (a,), (b, _) = fused(**given), plain(**given)
    torch.testing.assert_close(a, b, rtol=1e-6, atol=0)


def test_labels_may_be_shifted_already_and_positions_few() -> None:
    fused, plain = trained("Llama")
    shifted = texts()[:, -4:].contiguous()
    given = {"input_ids": texts(), "shift_labels": shifted, "labels": shifted, "logits_to_keep": 4}
    torch.testing.assert_close(fused(**given).loss, plain(**given).loss, rtol=1e-6, atol=0)


def test_shifted_labels_without_labels_give_logits_as_in_the_model() -> None:
    fused, plain = trained("Llama")
    a, b = (model(texts(), shift_labels=texts()) for model in (fused, plain))
    assert a.loss is b.loss is None
    assert torch.equal(a.logits, b.logits)


def test_without_labels_that_count_the_loss_is_0() -> None:
    fused, plain = trained("Llama")
    none = torch.full_like(texts(), -100)
    assert fused(texts(), labels=none).loss.item() == 0
    assert plain(texts(), labels=none).loss.isnan()


def test_labels_may_be_positional() -> None:
    fused, plain = trained("Llama")
    given = (texts(), None, None, None, None, labels())
    a, b = fused(*given), plain(*given)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-6, atol=0)
    assert a.logits is None


def test_calls_without_labels_and_evaluation_do_not_change() -> None:
    fused, plain = trained("Gemma2", final_logit_softcapping=3.0)
    assert torch.equal(fused(texts()).logits, plain(texts()).logits)
    a, b = (model.eval()(texts(), labels=labels()) for model in (fused, plain))
    assert torch.equal(a.logits, b.logits)
    assert torch.equal(a.loss, b.loss)
    assert torch.equal(*(model.generate(texts(), max_new_tokens=4, do_sample=False) for model in (fused, plain)))


def test_a_copy_of_a_fused_model_uses_its_own_weights() -> None:
    fused, _ = trained("Llama")
    other = copy.deepcopy(fused)
    with torch.no_grad():
        other.get_output_embeddings().weight.zero_()
        losses = [float(model(texts(), labels=texts()).loss) for model in (other, fused)]
    assert losses[0] == pytest.approx(math.log(101))
    assert losses[1] > 1.5 * losses[0]


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "Cohere"])
def test_metrics_are_those_of_the_logits(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse_module, "SCORES_AT_ONCE", 404)  # four rows
    _, plain = trained(family, **CHANGES.get(family, {}))
    fused, given = fuse(copy.deepcopy(plain), metrics=True), {"input_ids": texts(), "labels": labels()}
    found, logits, y = fused(**given), plain(**given).logits[:, :-1], labels()[:, 1:]
    p = logits[y != -100].softmax(-1)
    torch.testing.assert_close(found.entropy, -(p * p.log()).sum(-1).mean(), rtol=1e-5, atol=0)
    torch.testing.assert_close(found.token_accuracy, (p.argmax(-1) == y[y != -100]).float().mean())
    torch.testing.assert_close(found.loss, plain(**given).loss, rtol=1e-6, atol=0)
    assert [*fused(**given, return_dict=False)][-2:] == [found.entropy, found.token_accuracy]
    none = fused(texts(), labels=torch.full_like(texts(), -100))
    assert none.entropy == none.token_accuracy == 0


def test_a_copy_of_a_fused_model_may_be_unfused_and_pickled() -> None:
    fused, plain = trained("Llama")
    with torch.no_grad():
        wanted = plain(texts(), labels=labels())
        other = pickle.loads(pickle.dumps(fused))
        torch.testing.assert_close(other(texts(), labels=labels()).loss, wanted.loss, rtol=1e-6, atol=0)
        for model in (unfuse(other), unfuse(copy.deepcopy(fused))):
            assert torch.equal(model(texts(), labels=labels()).logits, wanted.logits)
        assert fused(texts(), labels=labels()).logits is None


def test_an_interrupted_call_leaves_the_model_as_it_was() -> None:
    fused, plain = trained("Llama")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = fused.model.norm.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        fused(texts(), labels=labels())
    handle.remove()
    assert torch.equal(fused.eval()(texts(), labels=labels()).logits, plain.eval()(texts()).logits)
    a, b = (model.train()(texts(), labels=labels()).loss for model in (fused, plain))
    torch.testing.assert_close(a, b, rtol=1e-6, atol=0)


def test_threads_do_not_disturb_each_other() -> None:
    """As in torch.nn.DataParallel, whose replicas share the hooks and have tensors in place of parameters."""
    fused, plain = trained("Llama")
    replica, head = (module._replicate_for_data_parallel() for module in (fused, fused.lm_head))
    head.weight, head.bias = fused.lm_head.weight * 1, None
    replica._modules["lm_head"] = head
    replicas = fused, replica
    batches = [texts()[:, n:] for n in range(8)]
    with ThreadPoolExecutor(2) as pool:
        losses = list(pool.map(lambda n: replicas[n % 2](batches[n], labels=batches[n]).loss, range(8)))
    wanted = [plain(batch, labels=batch).loss for batch in batches]
    torch.testing.assert_close(losses, wanted, rtol=1e-6, atol=0)


def test_a_loss_of_the_user_is_kept_and_a_later_one_refused() -> None:
    model = model_of("Llama", "eager").train()
    model.loss_function = ForCausalLMLoss
    assert unfuse(fuse(model)).loss_function is vars(model)["_loss_function"] is ForCausalLMLoss
    fuse(model).loss_function = lambda logits, *_, **__: logits.sum()
    with pytest.raises(ValueError, match=r"^model: expected the loss that fuse has set, got another one"):
        model(texts(), labels=labels())
    later = model.loss_function
    assert unfuse(model).loss_function is later


def test_a_model_whose_vocabulary_grows_stays_fused() -> None:
    fused, plain = trained("Llama")
    for model in (fused, plain):
        torch.manual_seed(0)
        model.resize_token_embeddings(120, mean_resizing=False)
    a, b = (model(texts(), labels=labels()) for model in (fused, plain))
    assert a.logits is None
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of the compiler
def test_a_fused_model_may_be_compiled() -> None:
    fused, plain = trained("Llama")
    compiled = torch.compile(fused, backend="aot_eager")
    a, b = (model(texts(), labels=labels()) for model in (compiled, plain))
    assert a.logits is None
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-6, atol=0)
    a, b = (
        torch.autograd.grad(x.loss, model.get_output_embeddings().weight)[0] for x, model in ((a, fused), (b, plain))
    )
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)


class Adapters(torch.nn.Module):
    """Calls the model as peft's adapters do: by its forward function, without its hooks."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def get_base_model(self) -> Any:
        return self.model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.forward(*args, **kwargs)


def test_a_model_with_adapters_is_fused_from_outside() -> None:
    plain = trained("Llama")[1]
    fused = fuse(Adapters(copy.deepcopy(plain)))
    a, b = (model(texts(), labels=labels()) for model in (fused, plain))
    assert a.logits is None
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-6, atol=0)
    with pytest.raises(ValueError, match=r"^model: this LlamaForCausalLM is fused already$"):
        fuse(fused)
    inside = unfuse(fused).model
    torch.testing.assert_close(inside(texts(), labels=labels()).loss, b.loss)
    with pytest.raises(ValueError, match=r"got one of its forward function, .*; fuse the outermost model$"):
        Adapters(fuse(inside))(texts(), labels=labels())
    with pytest.raises(TypeError, match=r"^model: expected a language model of transformers, got Linear$"):
        fuse(Adapters(torch.nn.Linear(2, 2)))


@pytest.mark.filterwarnings("default")  # peft asks for attributes that transformers has renamed
def test_a_model_with_a_lora_is_fused_from_outside() -> None:
    peft = pytest.importorskip("peft")
    options = {"r": 4, "task_type": "CAUSAL_LM", "init_lora_weights": False}
    plain = peft.get_peft_model(trained("Llama")[1], peft.LoraConfig(target_modules="all-linear", **options))
    fused = fuse(copy.deepcopy(plain))
    a, b = (model(input_ids=texts(), labels=labels()) for model in (fused, plain))
    assert a.logits is None
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-6, atol=0)
    for output in (a, b):
        output.loss.backward()
    for (name, p), q in zip(fused.named_parameters(), plain.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None) == ("lora" not in name)
        if q.grad is not None:
            assert float((p.grad - q.grad).abs().max()) <= 2e-6 * largest_gradient(plain), name
    merged = fuse(unfuse(fused).merge_and_unload())
    torch.testing.assert_close(merged(texts(), labels=labels()).loss, b.loss, rtol=1e-5, atol=0)
    head = peft.get_peft_model(trained("Llama")[1], peft.LoraConfig(target_modules=["lm_head"], **options))
    with pytest.raises(TypeError, match=r"^model: expected a head of type torch\.nn\.Linear, got peft\..*; merge or"):
        fuse(head)


def test_a_failing_call_leaves_the_model_as_it_was() -> None:
    fused, plain = trained("Llama")
    with pytest.raises(IndexError):
        fused(texts() + 1000, labels=labels())
    assert torch.equal(fused(texts()).logits, plain(texts()).logits)
    torch.testing.assert_close(fused(texts(), labels=labels()).loss, plain(texts(), labels=labels()).loss)


def test_a_call_with_a_bad_argument_or_a_changed_head_leaves_the_model_as_it_was() -> None:
    fused, plain = trained("Llama")
    with pytest.raises(TypeError, match="too many positional arguments"):
        fused(*[None] * 30)
    head = fused.get_output_embeddings()
    fused.set_output_embeddings(torch.nn.Sequential(head))
    with pytest.raises(TypeError, match="expected a head of type"):
        fused(texts(), labels=labels())
    fused.set_output_embeddings(head)
    torch.testing.assert_close(fused(texts(), labels=labels()).loss, plain(texts(), labels=labels()).loss)


def test_fuse_keeps_the_mode_of_every_part() -> None:
    model = model_of("Llama", "eager").train()
    model.model.layers[0].eval()
    assert model.training is fuse(model).training is True
    assert [layer.training for layer in model.model.layers] == [False, True, True]


def test_unfuse_restores_the_model() -> None:
    fused, plain = trained("Llama")
    assert unfuse(fused) is fused
    a, b = (model(texts(), labels=labels()) for model in (fused, plain))
    assert torch.equal(a.logits, b.logits)
    with pytest.raises(ValueError, match=r"^model: expected a fused model, got a LlamaForCausalLM that is not fused$"):
        unfuse(fused)


def test_bad_models_are_refused_before_anything_changes() -> None:
    model = model_of("Llama", "eager")
    with pytest.raises(ValueError, match=r"^model: this LlamaForCausalLM is fused already$"):
        fuse(fuse(model))
    with pytest.raises(TypeError, match=r"^model: expected a language model of transformers, got Linear$"):
        fuse(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"^metrics: expected a bool, got str$"):
        fuse(model, metrics="all")
    with pytest.raises(ValueError, match=r"^model: expected the loss of a causal language model, got that of BertForM"):
        fuse(model_of("Bert", "eager"))

    adapted = model_of("Llama", "eager")
    adapted.set_output_embeddings(torch.nn.Sequential(adapted.get_output_embeddings()))
    with pytest.raises(
        TypeError, match=r"^model: expected a head of type torch\.nn\.Linear, got torch\.nn\.\S+Sequential; merge or"
    ):
        fuse(adapted)

    with pytest.raises(TypeError, match=r"^model: expected a model with a head, got LlamaModel$"):
        fuse(model.model)
    short = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=8, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(ValueError, match=r"^model: expected a GPT2LMHeadModel that runs on 16 tokens with labels, got"):
        fuse(short)
    t5 = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=99, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
    )
    with pytest.raises(ValueError, match=r"^model: expected one call of loss_function in T5ForCond.*, got 0$"):
        fuse(t5)
    with pytest.raises(ValueError, match=r"^model: expected a fused model, got a NoneType that is not fused$"):
        unfuse(None)

    with torch.device("meta"):
        absent = transformers.LlamaForCausalLM(model.config)
    with pytest.raises(ValueError, match=r"it is sharded or offloaded, gather it first$"):
        fuse(absent)

    class Odd(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, labels: Any = None, **kwargs: Any) -> Any:
            logits = super().forward(*args, **kwargs).logits ** 2
            return transformers.modeling_outputs.CausalLMOutputWithPast(
                loss=self.loss_function(logits, labels, self.config.vocab_size), logits=logits
            )

    odd = Odd(model.config)
    with pytest.raises(
        ValueError, match=re.escape("changed by a factor and a soft-cap at most, got another change in Odd")
    ):
        fuse(odd)
    assert "forward" not in vars(odd.get_output_embeddings())
    assert not hasattr(odd, "_loss_function")
