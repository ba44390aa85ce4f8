"""A run of transformers' Trainer with a fused model, on text of the standard library."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("tokenizers")

from tests.integrate.models import model_of  # noqa: E402 after the skip
from tests.integrate.training import CLASSES, STEPS, TEXT, tokenizer  # noqa: E402

from softargmax.integrate import fuse  # noqa: E402


def examples() -> list[dict[str, Any]]:
    """Return tokens of a module's source, in pieces of several lengths, padded to one length."""
    ids = tokenizer().encode(TEXT).ids
    found = []
    for i in range(48):
        part = ids[30 * i : 30 * i + 20 + i % 11]
        missing = 32 - len(part)
        found.append({
            "input_ids": part + [0] * missing,
            "attention_mask": [1] * len(part) + [0] * missing,
            "labels": part + [-100] * missing,
        })  # fmt: skip
    return found


def losses(model: Any, folder: Path) -> list[float]:
    """Train for 10 steps of 2 x 4 examples, and return the loss of each step."""
    given = transformers.TrainingArguments(output_dir=str(folder), **STEPS)
    trainer = transformers.Trainer(model=model, args=given, train_dataset=examples())
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.slow
def test_the_losses_of_a_run_are_those_of_the_unfused_model(tmp_path: Path) -> None:
    plain = model_of("Llama", "eager", vocab_size=CLASSES)
    fused = fuse(copy.deepcopy(plain))
    found = [losses(model, tmp_path) for model in (fused, plain)]
    assert len(found[0]) == len(found[1]) == 10
    assert found[1][-1] < found[1][0] - 0.5
    assert found[0] == pytest.approx(found[1], rel=1e-5)
