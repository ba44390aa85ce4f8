"""Base classes of the layers that train on a few candidate classes: draws, scores, losses, and the state dict."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from softargmax.core import arrays, seeds
from softargmax.core.arrays import readable
from softargmax.core.check import integer
from softargmax.core.signature import public
from softargmax.core.torch_modules import one_call
from softargmax.normalize import logsumexp
from softargmax.output.adaptive_unigram import Learned
from softargmax.output.arguments import Pairs
from softargmax.output.counts import at_least, classes_of
from softargmax.output.sampler_base import Negatives, Sampler
from softargmax.output.torch_class_scores import coin_losses, of_pairs, pair_scores, rows_of_table, scores
from softargmax.output.torch_full import LinearKeywords, LinearLayer
from softargmax.output.torch_sampler import draw_classes, expected_counts, observe_classes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from softargmax.output.torch_base import Targets


class Candidates(NamedTuple):
    """Candidate classes, (n,) for all rows or (N, n) per row, and the logs of their expected counts."""

    index: Any
    log_expected: Any


class CandidateKeywords(LinearKeywords, total=False):
    """Keyword arguments of all layers that score candidates."""

    sparse: bool


class SampledKeywords(CandidateKeywords, total=False):
    """Keyword arguments of all layers with a sampler."""

    seed: int


class CandidateLayer(LinearLayer):
    """A linear layer whose loss uses only some classes, so gradients to weight and bias can be sparse."""

    @public
    def __init__(self, dim: int, classes: int, *, sparse: bool = False, **options: Unpack[LinearKeywords]) -> None:
        super().__init__(dim, classes, **options)
        self.sparse = sparse

    def _scored(self, h: Tensor, y: Targets, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the target's score (N,) and the candidates' scores (N, n)."""
        if index.ndim == 1:
            both = torch.cat([y.classes, index])
            w = rows_of_table(self.weight, both, sparse=self.sparse).to(h.dtype)
            own, s = (h * w[: len(h)]).sum(-1), scores(h, w[len(h) :], None)
            if self.bias is None:
                return own, s
            b = rows_of_table(self.bias, both, sparse=self.sparse).to(h.dtype)
            return own + b[: len(h)], s + b[len(h) :]
        s = pair_scores(h, *of_pairs(self.weight, self.bias, _pairs(y, index), sparse=self.sparse))
        s = s.reshape(len(h), 1 + index.shape[1])
        return s[:, 0], s[:, 1:]

    def _binary_losses(self, h: Tensor, y: Targets, index: Tensor, shift: Tensor | None = None) -> Tensor:
        """Return each row's sum of the binary logistic losses of its target and its candidates, (N,).

        shift: added to the scores, (N, 1 + n). Column 0 is for the target.
        """
        signs = torch.full((len(h), 1 + index.shape[1]), -1, dtype=torch.int8, device=h.device)
        signs[:, 0] = 1
        added = None if shift is None else shift.reshape(-1)
        table, pairs = of_pairs(self.weight, self.bias, _pairs(y, index), sparse=self.sparse)
        return coin_losses(h, table, pairs, signs.reshape(-1), added)


def candidate_loss(own: Tensor, others: Tensor) -> Tensor:
    """Return the cross-entropy of each row, (N,), over the target and the other candidates.

    own: the score of the target, (N,). others: the scores of the other candidates, (N, n).
    """
    loss: Tensor = 0.0 - logsigmoid(own - logsumexp(others))
    return loss


def _pairs(y: Targets, index: Tensor) -> Pairs:
    """Pair each row with its target, then with its candidates, the classes `index` (N, n)."""
    nodes = torch.cat([y.classes[:, None], index], 1)
    rows = torch.arange(len(nodes) + 1, device=nodes.device)
    return Pairs(nodes.reshape(-1), rows[:-1].repeat_interleave(nodes.shape[1]), rows * nodes.shape[1])


class SamplingLayer(CandidateLayer):
    """A layer that draws new candidates in each step."""

    step: Tensor

    @public
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
            raise TypeError(
                f"sampler: expected a Sampler (Uniform, LogUniform, Unigram, ..), got {type(sampler).__name__}"
            )
        super().__init__(dim, sampler.classes, **options)
        self.sampler, self.unique, self.shared = sampler, unique, shared
        self.samples = at_least(samples, "samples", 1)
        sampler.expected(0, self.samples, unique=unique)  # raises if the sampler cannot draw so many classes
        self.seed = seeds.seed_of(sampler.probabilities, integer(seed, "seed"), None)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=self.weight.device))

    def reset_parameters(self) -> None:
        """Reset the parameters as `FullSoftmax` does, and set the step to 0."""
        super().reset_parameters()
        self.step.zero_()

    @one_call
    def forward(self, hidden: Tensor, target: Tensor, negatives: Negatives | None = None) -> Tensor:
        h, shape, y = self._inputs(hidden, target)
        drawn = None if negatives is None else _candidates(negatives, h, shape, y, self.classes)
        loss = self._reduced(self._losses(h, y, drawn), shape, y)
        if drawn is None and self.training:
            self._advance(y, loss)
        return loss

    if TYPE_CHECKING:

        def __call__(self, hidden: Tensor, target: Tensor, negatives: Negatives | None = None) -> Tensor: ...

    @abstractmethod
    def _losses(self, h: Tensor, y: Targets, drawn: Candidates | None = None) -> Tensor:
        """Return the loss of every row, with the candidates `drawn` or, if None, with the draws of this step."""

    def _drawn_for(self, h: Tensor, y: Targets, n: int) -> Candidates:
        """Return the first n draws of this step.

        If `shared`, all rows have the same draws. Otherwise each row has its own draws, which do not depend on other
        rows.
        """
        total = None if self.shared else y.total
        return Candidates(
            *draw_classes(self.sampler.number, self.seed, self.step, n, self.unique, total, y.rows, h.dtype)
        )

    def _expected(self, sampler: Sampler, index: Tensor, n: int, *, unique: bool) -> Tensor:
        """Return the expected counts of classes among the n draws of this step, in float64."""
        found: Tensor = expected_counts(sampler.number, self.step, index, n, unique)
        return found

    def _advance(self, y: Targets, loss: Tensor) -> None:
        """Advance to the next step. `Learned` samplers observe the targets after the loss is computed."""
        if learned := self._learned():
            numbers = [one.number for one in learned.values()]
            observe_classes(numbers, self.step, y.classes, y.counted, loss.detach())
        else:
            self.step += 1

    # --- state --------------------------------------------------------------------------------------------------------

    def _learned(self) -> dict[str, Learned]:
        """Return a dict of the samplers that learn. The keys are the names of the layer's arguments."""
        return {"sampler": self.sampler} if isinstance(self.sampler, Learned) else {}

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, learned in self._learned().items():
            destination[f"{prefix}{name}.counts"] = torch.from_numpy(learned.counts)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, metadata: Any, strict: bool, *lists: list[str]
    ) -> None:
        missing, _, errors = lists
        state_dict = dict(state_dict)
        for name, learned in self._learned().items():
            key = f"{prefix}{name}.counts"
            if key not in state_dict:
                missing.append(key)
                continue
            try:
                learned.load_state_dict({"counts": state_dict.pop(key)})
            except (TypeError, ValueError) as error:
                errors.append(f"{key}: {error}")
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *lists)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, sampler={self.sampler!r}, samples={self.samples}"


def _candidates(negatives: Any, h: Tensor, shape: tuple[int, ...], y: Targets, classes: int) -> Candidates:
    """Return the checked candidates from the `negatives` argument."""
    if not isinstance(negatives, tuple) or len(negatives) != len(Negatives._fields):
        raise TypeError(f"negatives: expected Negatives(index, log_expected), got {type(negatives).__name__}")
    like = h.detach()
    index, log_expected = (torch.as_tensor(x, device=like.device) for x in negatives)
    if arrays.dtype_name(index.dtype) not in arrays.INTEGERS - {"bool"}:
        raise TypeError(f"negatives.index: expected integers, got dtype {index.dtype}")
    if not index.ndim or (index.ndim != 1 and tuple(index.shape[:-1]) != shape):
        raise ValueError(f"negatives.index: expected shape (n,) or {(*shape, 'n')}, got {tuple(index.shape)}")
    if log_expected.shape != index.shape:
        raise ValueError(
            "negatives.log_expected: expected the shape of negatives.index, "
            f"{tuple(index.shape)}, got {tuple(log_expected.shape)}"
        )
    if readable(index) and index.is_cpu:
        classes_of(index, "negatives.index", classes)
    else:
        outside = (index < 0) | (index >= classes)
        index, log_expected = torch.where(outside, 0, index), torch.where(outside, torch.nan, log_expected)
    if index.ndim > 1:
        index, log_expected = (x.reshape(-1, x.shape[-1]) for x in (index, log_expected))
        if y.rows is not None:
            index, log_expected = index[y.rows], log_expected[y.rows]
    return Candidates(index.long(), log_expected.to(h.dtype))
