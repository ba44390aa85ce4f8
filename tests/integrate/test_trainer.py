"""A run of transformers' Trainer with a fused model, on text of the standard library."""

from __future__ import annotations

import copy
import inspect
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
tokenizers = pytest.importorskip("tokenizers")

from tests.integrate.models import model_of  # noqa: E402 after the skip

from softargmax.integrate import fuse  # noqa: E402

CLASSES = 400


def examples() -> list[dict[str, Any]]:
    """Return tokens of a module's source, in pieces of several lengths, padded to one length."""
    text = inspect.getsource(textwrap)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=CLASSES, special_tokens=["<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([text], trainer)
    ids = made.encode(text).ids
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
    given = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=10,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        dataloader_pin_memory=False,
        seed=1,
    )
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
