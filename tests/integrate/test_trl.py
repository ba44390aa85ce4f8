"""Runs of TRL's SFTTrainer with a fused model, on text of the standard library."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
add_fused_lm_head = pytest.importorskip("trl.trainer.utils").add_fused_lm_head

from tests.integrate.models import model_of, texts  # noqa: E402 after the skips
from tests.integrate.training import CLASSES, STEPS, TEXT, tokenizer  # noqa: E402

from softargmax.integrate import fuse, register, unfuse, unregister  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # TRL warns of options that it sets itself
fuse_module = sys.modules["softargmax.integrate.fuse"]  # the function has the same name


def logs_of_trl(model: Any, folder: Path, compute_loss: Any = None, **options: Any) -> list[dict[str, float]]:
    """Train with TRL's SFTTrainer, and return what it logs: losses, entropies, accuracies, and a last evaluation."""
    lines = [line for line in TEXT.splitlines() if line.strip()]
    data = datasets.Dataset.from_dict({"text": ["\n".join(lines[i : i + 1 + i % 7]) for i in range(0, 160, 2)]})
    special = {"pad_token": "<pad>", "eos_token": "<end>"}
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), model_max_length=64, **special)
    given = trl.SFTConfig(output_dir=str(folder), bf16=False, max_length=64, **{**STEPS, **options})
    own = {} if compute_loss is None else {"compute_loss": compute_loss}
    trainer = type("Trainer", (trl.SFTTrainer,), own)(
        model, given, train_dataset=data, eval_dataset=data, processing_class=wrapped
    )
    trainer.train()
    trainer.evaluate()
    return trainer.state.log_history


NUMBERS = {"loss", "train_loss", "eval_loss", "entropy", "mean_token_accuracy", "aux_loss"}


def assert_alike(*logs: list[dict[str, float]]) -> None:
    found, wanted = ([{name: log[name] for name in NUMBERS & {*log}} for log in run] for run in logs)
    assert len(found) == len(wanted) == 12  # 10 steps, the run, and the evaluation
    for a, b in zip(found, wanted, strict=True):
        assert a == pytest.approx(b, rel=1e-5)


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let TRL report its use to nobody."""
    monkeypatch.setenv("CI", "1")


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the losses that fused models have computed."""
    made: list[str] = []
    for name in ("linear_cross_entropy", "linear_selected_log_softmax"):
        own = getattr(fuse_module, name)
        monkeypatch.setattr(fuse_module, name, lambda *a, n=name, f=own, **o: (made.append(n), f(*a, **o))[1])
    return made


@pytest.mark.parametrize(
    "options",
    [{}, {"packing": True}, {"packing": True, "loss_type": "dft"}],
    ids=["padded", "packed", "packed_dft"],
)
@pytest.mark.parametrize("family", ["Llama", "Gemma2", "Mixtral"])
def test_the_logs_of_trl_are_those_of_the_unfused_model(
    family: str, options: dict[str, Any], tmp_path: Path, ours: list[str]
) -> None:
    # A token sees all experts: the choice of some would make a difference of a last bit large.
    experts = {"output_router_logits": True, "router_aux_loss_coef": 0.5, "num_experts_per_tok": 4}
    plain = model_of(family, "eager", vocab_size=CLASSES, **(experts if family == "Mixtral" else {}))
    fused = fuse(copy.deepcopy(plain))
    register()
    try:
        fused.set_attn_implementation("softargmax")
        found = logs_of_trl(fused, tmp_path, **options)
    finally:
        unregister()
    assert ours == ["linear_selected_log_softmax"] * 20
    wanted = logs_of_trl(plain, tmp_path, **options)
    assert wanted[9]["mean_token_accuracy"] > wanted[0]["mean_token_accuracy"]
    assert_alike(found, wanted)


def test_trl_may_leave_the_loss_to_transformers(tmp_path: Path, ours: list[str]) -> None:
    plain = model_of("Llama", "eager", vocab_size=CLASSES)
    found, wanted = (
        logs_of_trl(model, tmp_path, transformers.Trainer.compute_loss, packing=True)
        for model in (fuse(copy.deepcopy(plain)), plain)
    )
    assert ours == ["linear_cross_entropy"] * 20
    assert_alike(found, wanted)


def test_trl_trains_the_adapters_of_a_fused_model(tmp_path: Path, ours: list[str]) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    options = peft.LoraConfig(r=4, task_type="CAUSAL_LM", init_lora_weights=False)
    plain = peft.get_peft_model(model_of("Llama", "eager", vocab_size=CLASSES), options)
    found = logs_of_trl(fuse(copy.deepcopy(plain)), tmp_path, packing=True)
    assert ours == ["linear_selected_log_softmax"] * 20
    assert_alike(found, logs_of_trl(plain, tmp_path, packing=True))


def test_other_uses_of_the_head_of_trl_are_refused() -> None:
    sft = ("log_probs", "entropy", "is_top1")
    for options in ({"temperature": 0.7, "outputs": sft}, {"cast_lm_head_to_fp32": True, "outputs": sft}, {}):
        model = fuse(model_of("Llama", "eager")).train()
        add_fused_lm_head(model, **options)
        with pytest.raises(
            ValueError, match=r"^fused_lm_head: expected the SFTTrainer of TRL, .*; call unfuse\(model\)"
        ):
            model(texts(), labels=texts(), fused_lm_head=True)
        unfuse(model)(texts(), labels=texts(), fused_lm_head=True).loss.backward()
