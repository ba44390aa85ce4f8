"""Training: the optimisers, the order of the data, steps, and perplexity on held-out text."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from softargmax.cli.errors import FailedRunError
from softargmax.cli.words.torch_models import LanguageModel
from softargmax.nn import TargetSampledSoftmax

if TYPE_CHECKING:
    from softargmax.cli.words.settings import Settings
    from softargmax.cli.words.vocabulary import Ints

PART = 16  # the target-sampling layer normalises over all targets of this many consecutive steps


class Training:
    """A model in training.

    The data of a step depend only on the seed and the step's number. So a resumed training gets the same data as an
    uninterrupted training. On one machine, equal seeds give equal bits if package versions and the number of threads
    are equal. The versions and the number of threads determine the order in which torch adds numbers.
    """

    def __init__(self, settings: Settings, text: Ints, counts: Ints) -> None:
        check_length(text, settings, "to train on")
        self.settings, self.text = settings, torch.from_numpy(text)
        self.model = LanguageModel(settings, counts)
        self.step, self.seconds, self.loss = 0, 0.0, math.nan
        room, length = len(text) - settings.before, settings.length
        self.spans = max(1, room // length - 1)
        self.shifts = min(length, room - self.spans * length + 1)
        self.rows = min(settings.batch // length, self.spans)
        self.per_epoch = self.spans // self.rows
        self.tokens_per_step = self.rows * length
        self._epoch, self._starts, self._part = -1, np.empty(0, np.int64), -1
        self.optimisers = self._optimisers()

    def _optimisers(self) -> dict[str, torch.optim.Optimizer]:
        """Return SparseAdam for parameters with sparse gradients, and Adam for the others."""
        self.model.eval()  # in eval mode a layer does not advance its step counter
        self.model.loss(self.batch(0)).backward()  # type: ignore[no-untyped-call]
        self.model.train()
        parameters = list(self.model.parameters())
        sparse = [p for p in parameters if p.grad is not None and p.grad.is_sparse]
        dense = [p for p in parameters if p.grad is None or not p.grad.is_sparse]
        self.model.zero_grad()
        lr = self.settings.lr
        return {"adam": torch.optim.Adam(dense, lr, fused=True), "sparse_adam": torch.optim.SparseAdam(sparse, lr)}

    def batch(self, step: int) -> Tensor:
        """Return the token sequences of a step.

        Each epoch cuts the text into sequences from a new offset, and takes them in a new order.
        """
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            rng = np.random.default_rng([self.settings.seed, epoch])
            self._starts = rng.permutation(self.spans) * self.settings.length + rng.integers(self.shifts)
            self._epoch = epoch
        starts = torch.from_numpy(self._starts[place * self.rows : (place + 1) * self.rows])
        return self.text[starts[:, None] + torch.arange(self.settings.width)].long()

    def advance(self) -> None:
        """Run one training step, and add its run time to the seconds of training."""
        began = time.perf_counter()
        self._share_targets()
        loss = self.model.loss(self.batch(self.step))
        self.loss = float(loss.detach())
        if not math.isfinite(self.loss):
            raise FailedRunError(
                f"the loss of layer {self.settings.layer} is {self.loss} at step {self.step}; a smaller --lr may help"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        for optimiser in self.optimisers.values():
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        self.seconds += time.perf_counter() - began

    def _share_targets(self) -> None:
        """Set the candidates of a target-sampling layer to the targets of `PART` steps, including this one."""
        layer, part = self.model.layer, self.step // PART
        if isinstance(layer, TargetSampledSoftmax) and part != self._part:
            steps = range(part * PART, (part + 1) * PART)
            layer.use(torch.cat([self.model.predicted(self.batch(step)).flatten() for step in steps]).unique())  # type: ignore[no-untyped-call]
            self._part = part

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor of the model and of the optimisers, by name."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for kind, optimiser in self.optimisers.items():
            for place, state in optimiser.state_dict()["state"].items():
                found |= {f"{kind}.{place}.{name}": torch.as_tensor(value) for name, value in state.items()}
        return found

    def shapes(self) -> dict[str, torch.Size]:
        """Return the name and shape of every tensor that `tensors` can return."""
        found = {f"model.{name}": tensor.shape for name, tensor in self.model.state_dict().items()}
        for kind, optimiser in self.optimisers.items():
            for place, parameter in enumerate(optimiser.param_groups[0]["params"]):
                shapes = {"exp_avg": parameter.shape, "exp_avg_sq": parameter.shape, "step": torch.Size()}
                found |= {f"{kind}.{place}.{name}": shape for name, shape in shapes.items()}
        return found

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state that `tensors` returned."""
        named = [(name.split(".", 1), tensor) for name, tensor in tensors.items()]
        self.model.load_state_dict({name: tensor for (kind, name), tensor in named if kind == "model"})
        for kind, optimiser in self.optimisers.items():
            states: dict[int, dict[str, Any]] = defaultdict(dict)
            for (owner, name), tensor in named:
                if owner == kind:
                    place, key = name.split(".")
                    states[int(place)][key] = tensor if tensor.is_floating_point() else int(tensor)
            optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})


class HeldOut:
    """Token sequences, spread evenly over the held-out text.

    They have at most `most` predicted tokens in all. If one sequence already has more, there is only this sequence.
    """

    def __init__(self, settings: Settings, text: Ints, most: int) -> None:
        check_length(text, settings, "held out")
        count = min(max(1, most // settings.length), (len(text) - settings.before) // settings.length)
        starts = np.linspace(0, len(text) - settings.width, count).astype(np.int64)
        self.settings = settings
        self.spans = torch.from_numpy(text[starts[:, None] + np.arange(settings.width)]).long()

    @property
    def tokens(self) -> int:
        """Return the number of predicted tokens."""
        return len(self.spans) * self.settings.length

    @torch.no_grad()
    def perplexity(self, model: LanguageModel) -> float | None:
        """Return exp(mean of -log p), with p normalised over all classes. Return None if the layer defines no p."""
        total = 0.0
        try:
            for spans in torch.split(self.spans, self.settings.batch // self.settings.length):
                total += float(model.log_prob_of(spans).double().sum())
        except NotImplementedError:
            return None
        return perplexity_of(total / self.tokens)

    def unigram(self, counts: Ints) -> float:
        """Return the perplexity of the distribution proportional to the counts plus 1."""
        log_p = np.log((counts + 1) / (counts.sum() + len(counts)))
        return perplexity_of(float(log_p[self.spans[:, self.settings.before :].numpy()].mean()))


def perplexity_of(mean_log_p: float) -> float:
    """Return exp(-mean_log_p), or infinity if it overflows."""
    return math.exp(-mean_log_p) if -mean_log_p < 700 else math.inf


def check_length(text: Ints, settings: Settings, what: str) -> None:
    """Raise FailedRunError if a text is too short for one training sequence."""
    if len(text) < settings.width:
        raise FailedRunError(
            f"expected at least {settings.width} tokens {what} for --context {settings.context}, got {len(text)}"
        )
