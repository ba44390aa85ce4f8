"""What layers share that are trained by some of their classes: draws, the candidates' scores, the state of both."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import torch
from torch import Tensor

from softargmax.core import arrays, seeds
from softargmax.core.dispatch import readable
from softargmax.core.targets import integer
from softargmax.output.counts import classes_of
from softargmax.output.learned import Learned
from softargmax.output.sampler import Negatives, Sampler
from softargmax.output.torch_full import LinearKeywords, LinearLayer
from softargmax.output.torch_rows import Pairs, gathered, pair_scores, scores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from softargmax.output.torch_layer import Targets

ROWS = 1 << 32
"""Streams to a step where each row has its own."""


class Candidates(NamedTuple):
    """Classes (n,), the same for all rows, or (N, n), and the log of how often each is expected, of that shape."""

    index: Any
    log_expected: Any


class CandidateKeywords(LinearKeywords, total=False):
    """What every layer that looks at some classes takes by name."""

    sparse: bool


class SampledKeywords(CandidateKeywords, total=False):
    """What every layer with a sampler takes by name."""

    seed: int


class CandidateLayer(LinearLayer):
    """A linear layer whose loss looks at some classes: a gradient to weight and bias may be sparse."""

    def __init__(self, dim: int, classes: int, *, sparse: bool = False, **options: Unpack[LinearKeywords]) -> None:
        super().__init__(dim, classes, **options)
        self.sparse = sparse

    def _scored(self, h: Tensor, y: Targets, index: Tensor) -> tuple[Tensor, Tensor]:
        """The target's score (N,) and the candidates' (N, n)."""
        if index.ndim == 1:
            both = torch.cat([y.classes, index])
            w = gathered(self.weight, both, sparse=self.sparse).to(h.dtype)
            own, s = (h * w[: len(h)]).sum(-1), scores(h, w[len(h) :], None)
            if self.bias is None:
                return own, s
            b = gathered(self.bias, both, sparse=self.sparse).to(h.dtype)
            return own + b[: len(h)], s + b[len(h) :]
        nodes = torch.cat([y.classes[:, None], index], 1)
        n, width = nodes.shape
        rows = torch.arange(n, device=h.device)
        pairs = Pairs(nodes.reshape(-1), rows.repeat_interleave(width), rows * width)
        s = pair_scores(h, self.weight, self.bias, pairs, sparse=self.sparse).reshape(n, width)
        return s[:, 0], s[:, 1:]


class SamplingLayer(CandidateLayer):
    """A layer that draws its candidates anew at each step."""

    step: Tensor

    def __init__(
        self,
        dim: int,
        sampler: Sampler,
        *,
        samples: int,
        unique: bool,
        shared: bool,
        seed: int = 0,
        **options: Unpack[CandidateKeywords],
    ) -> None:
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler: {type(sampler).__name__}; it may be a Sampler: Uniform, LogUniform, Unigram, ..")
        super().__init__(dim, sampler.classes, **options)
        self.sampler, self.unique, self.shared = sampler, unique, shared
        self.samples = integer(samples, "samples")
        sampler.expected(0, self.samples, unique=unique)  # what it cannot draw is said here
        if self.samples < 1:
            raise ValueError(f"samples: {samples}; it may be 1 or more")
        self.seed = seeds.seed_of(sampler.probabilities, integer(seed, "seed"), None)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=self.weight.device))

    def forward(self, hidden: Tensor, target: Tensor, negatives: Negatives | None = None) -> Tensor:
        h, shape, y = self._given(hidden, target)
        drawn = None if negatives is None else _candidates(negatives, h, shape, y, self.classes)
        loss = self._reduced(self._losses(h, y, drawn), shape, y)
        if drawn is None and self.training:
            self._go_on(y)
        return loss

    @abstractmethod
    def _losses(self, h: Tensor, y: Targets, drawn: Candidates | None = None) -> Tensor:
        """The loss of every row beside these candidates, or beside this step's."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _drawn_for(self, h: Tensor, n: int) -> Candidates:
        """The first n draws of this step, for all rows or for each."""
        step, rows = int(self.step), len(h)
        draw = partial(self.sampler.draw, seed=self.seed, unique=self.unique, like=h)
        if self.shared:
            found = draw(n, stream=step)
        elif not self.unique:
            found = draw(rows * n, stream=step)
            found = Negatives(found.index.reshape(rows, n), found.log_expected.reshape(rows, n) - log(max(rows, 1)))
        else:
            each = [draw(n, stream=step * ROWS + row) for row in range(max(rows, 1))]
            found = Negatives(*(torch.stack(part)[:rows] for part in zip(*each, strict=True)))
        return Candidates(found.index, found.log_expected.to(h.dtype))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _expected_of(self, y: Targets, n: int, like: Tensor) -> Tensor:
        """The log of how often targets are expected among n draws."""
        if readable(y.classes):
            found = self.sampler.expected(y.classes, n, unique=self.unique)
        else:
            found = torch.as_tensor(self.sampler.expected(range(self.classes), n, unique=self.unique))[y.classes]
        log_expected: Tensor = found.log().to(like.dtype)
        return log_expected

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _go_on(self, y: Targets) -> None:
        """To the next step."""
        self.step += 1
        if isinstance(self.sampler, Learned):
            self.sampler.observe(y.classes[y.counted])

    # --- state --------------------------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if isinstance(self.sampler, Learned):
            for name, array in self.sampler.state_dict().items():
                destination[f"{prefix}sampler.{name}"] = torch.from_numpy(array)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        missing, _, errors = lists
        if isinstance(self.sampler, Learned):
            key = f"{prefix}sampler.counts"
            state_dict = dict(state_dict)
            if key not in state_dict:
                missing.append(key)
            else:
                try:
                    self.sampler.load_state_dict({"counts": state_dict.pop(key)})
                except (TypeError, ValueError) as error:
                    errors.append(f"{key}: {error}")
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *lists)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sampler={self.sampler!r}, samples={self.samples}"


def _candidates(negatives: Any, h: Tensor, shape: tuple[int, ...], y: Targets, classes: int) -> Candidates:
    """Candidates that a caller has drawn, checked."""
    if not isinstance(negatives, tuple) or len(negatives) != len(Negatives._fields):
        raise TypeError(f"negatives: {type(negatives).__name__}; it may be Negatives, index and log_expected")
    like = h.detach()
    index, log_expected = (torch.as_tensor(x, device=like.device) for x in negatives)
    if arrays.dtype_name(index.dtype) not in arrays.INTEGERS - {"bool"}:
        raise TypeError(f"negatives.index: dtype {index.dtype}; it may be integers")
    if index.ndim != 1 and tuple(index.shape[:-1]) != shape:
        raise ValueError(f"negatives.index: shape {tuple(index.shape)}; it may be (n,) or (*{shape}, n)")
    if log_expected.shape != index.shape:
        raise ValueError(f"negatives.log_expected: shape {tuple(log_expected.shape)}; index has {tuple(index.shape)}")
    if readable(index) and index.is_cpu:
        classes_of(index, "negatives.index", classes)
    if index.ndim > 1:
        index, log_expected = (x.reshape(-1, x.shape[-1]) for x in (index, log_expected))
        if y.rows is not None:
            index, log_expected = index[y.rows], log_expected[y.rows]
    return Candidates(index.long(), log_expected.to(h.dtype))
