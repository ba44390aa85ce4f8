"""A text, a tokenizer and options for runs of trainers, without a network."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

import tokenizers

CLASSES = 400
TEXT = inspect.getsource(textwrap)
STEPS = {
    "max_steps": 10,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-2,
    "adam_epsilon": 1e-5,  # Adam would divide gradients that are rounding errors by their own magnitude
    "logging_steps": 1,
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "save_strategy": "no",
    "dataloader_pin_memory": False,
    "seed": 1,
}


def tokenizer() -> Any:
    """Return a tokenizer that was trained on the text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=CLASSES, special_tokens=["<pad>", "<end>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    return made
