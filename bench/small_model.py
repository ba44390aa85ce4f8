"""A small language model of the source of Python's standard library, trained with `linear_cross_entropy`.

The scores of a trained model differ from noise: most words have tiny probabilities, and these are largely the same
words in every row.
"""

from __future__ import annotations

import collections
import re
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn

import softargmax as sa

CONTEXT = 4  # the number of preceding words that the model uses


def words(count: int, least: int = 3_000_000) -> Tensor:
    """Return the text as numbers from 0 to count - 1, most common word first. Rarer words share the last number."""
    folder, text = Path(sysconfig.get_paths()["stdlib"]), []
    for path in sorted(folder.rglob("*.py")):
        text += re.findall(r"\w+|[^\w\s]", path.read_text(encoding="utf-8", errors="replace"))
        if len(text) > least:
            break
    common = collections.Counter(text).most_common(count - 1)
    number = {word: i for i, (word, _) in enumerate(common)}
    return torch.tensor([number.get(word, count - 1) for word in text])


class Words(nn.Module):
    """A model that computes hidden vectors of size D from the preceding words. Its output weights are (K, D)."""

    def __init__(self, classes: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(classes, size // CONTEXT)
        self.hidden = nn.Linear(size, size)
        self.output = nn.Parameter(torch.randn(classes, size) / size**0.5)

    def forward(self, before: Tensor) -> Tensor:
        """Return hidden vectors (N, D) from the numbers of the preceding words (N, CONTEXT)."""
        return torch.tanh(self.hidden(self.embedding(before).flatten(1))) * 4


def trained(rows: int, size: int, classes: int, steps: int = 120) -> tuple[Tensor, Tensor, Tensor, float]:
    """Train a model for some steps. Return h and y of a batch, W, and the loss of the batch."""
    torch.manual_seed(0)
    text, model = words(classes), Words(classes, size)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    windows = text.unfold(0, CONTEXT + 1, 1)

    def batch() -> tuple[Tensor, Tensor]:
        rows_of = windows[torch.randint(len(windows), (rows,))]
        return model(rows_of[:, :-1]), rows_of[:, -1].contiguous()

    for _ in range(steps):
        h, y = batch()
        optimizer.zero_grad()
        sa.linear_cross_entropy(h, model.output, y).backward()
        optimizer.step()
    h, y = batch()
    loss = sa.linear_cross_entropy(h, model.output, y).item()
    return h.detach(), y, model.output.detach(), loss
