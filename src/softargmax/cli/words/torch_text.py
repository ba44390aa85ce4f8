"""Generate text with a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from softargmax import categorical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from softargmax.cli.words.torch_models import LanguageModel


@torch.no_grad()
def continued(
    model: LanguageModel, classes: Sequence[int], n: int, top_p: float, seed: int, *, without: Sequence[int] = ()
) -> list[int]:
    """Return `n` classes that continue a nonempty sequence, drawn by top-p sampling.

    Each draw depends only on the model, the seed, the draw's position and the classes before it. Classes in `without`
    are never drawn.
    """
    tokens = [classes[0]] * (model.settings.before - 1) + list(classes)
    allowed = torch.ones(model.layer.classes, dtype=torch.bool)
    allowed[list(without)] = False
    for place in range(n):
        log_p = model.log_prob(torch.tensor(tokens))
        tokens.append(int(categorical(log_p, top_p=top_p, where=allowed, seed=seed, stream=torch.tensor(place))))
    return tokens[-n:] if n else []
