"""Draws for `generate`, with a seed per request."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from softargmax.core import check
from softargmax.sample import categorical_with_logprob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from softargmax.core.types import PerRow

STEPS = 1 << 20
"""The largest number of tokens of a request. Step t of the request with seed s has the stream STEPS s + t."""


class FilterKeywords(TypedDict, total=False):
    """The options of `Sampler`. The docstring of `softargmax.categorical` explains them."""

    temperature: PerRow
    top_k: PerRow | None
    top_p: PerRow | None
    min_p: PerRow | None
    typical_p: PerRow | None
    epsilon: PerRow | None
    eta: PerRow | None
    order: str


class Sampler(LogitsProcessor):
    r"""A processor for `generate` that draws the tokens of each request with the request's own seed.

    .. math:: y_{rt} = \arg\max_i\,(\beta z_{rti} + g_i(s_r, t))

    over the classes that the filters keep, where s is the seed of request r and t its number of tokens so far. Given
    the same logits, a request has the same tokens and log-probabilities, to the last bit, alone and at any place in any
    batch.

    Parameters
    ----------
    seeds : int, sequence or array of int
        A seed for each request, from 0 to 2^43 - 1. One number serves a batch of one request.
    **filters
        temperature, top_k, top_p, min_p, typical_p, epsilon, eta and order, as in `softargmax.categorical`. A number,
        or a tensor with a number per request.

    Attributes
    ----------
    logprobs : Tensor, shape (B, steps)
        The log-probabilities of the drawn tokens in the filtered distribution, in float32.

    Raises
    ------
    TypeError
        If a seed is not an integer, or an argument has an unknown name.
    ValueError
        If a seed or a filter is out of range, or if the number of seeds is not the number of requests.

    Notes
    -----
    Pass the method `generate` as `custom_generate`: it needs no other options. Or pass the sampler as the last element
    of `logits_processor`, with ``do_sample=True, top_k=0``. This also works with `assistant_model` and `streamer`,
    which transformers does not pass on to `custom_generate`.

    With a draft model (`assistant_model`), both models draw with the same noise. The tokens are those of the large
    model alone.

    Of `logprobs`, only the columns of returned tokens count. After the end of a request, and after the last token that
    the large model has accepted, they mean nothing.

    References
    ----------
    Holtzman et al. (2020), The curious case of neural text degeneration. arXiv:1904.09751. Leviathan, Kalman & Matias
    (2023), Fast inference from transformers via speculative decoding. arXiv:2211.17192.

    Examples
    --------
    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from softargmax.integrate import Sampler
    >>> config = LlamaConfig(
    ...     vocab_size=99,
    ...     hidden_size=32,
    ...     intermediate_size=64,
    ...     num_hidden_layers=1,
    ...     num_attention_heads=4,
    ...     eos_token_id=None,
    ...     pad_token_id=0,
    ... )
    >>> model = LlamaForCausalLM(config).eval()
    >>> prompts = torch.tensor([[5, 6, 7], [8, 9, 10]])
    >>> sampler = Sampler([11, 12], top_p=0.9)
    >>> both = model.generate(prompts, custom_generate=sampler.generate, max_new_tokens=4)
    >>> alone = model.generate(prompts[1:], custom_generate=Sampler(12, top_p=0.9).generate, max_new_tokens=4)
    >>> bool((both[1:] == alone).all()), sampler.logprobs.shape
    (True, torch.Size([2, 4]))
    """

    supports_continuous_batching = False

    def __init__(self, seeds: int | Sequence[int] | Any, **filters: Unpack[FilterKeywords]) -> None:
        unknown = sorted({*filters} - FilterKeywords.__optional_keys__)
        if unknown:
            known = ", ".join(sorted(FilterKeywords.__optional_keys__))
            raise TypeError(f"Sampler() got an unknown argument {unknown[0]!r}; it takes seeds, {known}")
        given = seeds.tolist() if hasattr(seeds, "tolist") else seeds
        self.seeds = [_seed(seed) for seed in (given if isinstance(given, Iterable) else [given])]
        self.filters = filters
        self._start: int | None = None
        self._logprobs: dict[int, Tensor] = {}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Draw a token per row. Return scores of 0 for the drawn tokens and of -inf for all others."""
        if len(self.seeds) != len(scores):
            raise ValueError(f"seeds: expected {len(scores)} seeds, one per request, got {len(self.seeds)}")
        if self._start is None:
            self._start = input_ids.shape[-1]
        step = input_ids.shape[-1] - self._start
        if not 0 <= step <= len(self._logprobs):
            raise ValueError(
                f"Sampler: expected one call of generate, got step {step} after {len(self._logprobs)} steps; make a "
                "new one for every call"
            )
        if step >= STEPS:
            raise ValueError(f"Sampler: expected at most {STEPS} tokens per request, got step {step}")
        if step == 0:
            self._logprobs.clear()
        stream = torch.tensor([STEPS * seed + step for seed in self.seeds], device=scores.device)
        drawn = categorical_with_logprob(scores, seed=0, stream=stream, **self.filters)
        self._logprobs[step] = drawn.logprob
        return torch.full_like(scores, -torch.inf).scatter_(-1, drawn.index[:, None], 0.0)

    @property
    def logprobs(self) -> Tensor:
        """The log-probabilities of the drawn tokens, (B, steps)."""
        if not self._logprobs:
            raise ValueError("logprobs: expected a call of generate with this sampler before")
        return torch.stack([self._logprobs[step] for step in sorted(self._logprobs)], -1)

    def generate(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **options: Any,
    ) -> Any:
        """Generate with this sampler: a function for `custom_generate`.

        The other processors, such as penalties, come first. transformers' own temperature and filters (its "warpers")
        are left out. Each call begins with step 0.
        """
        self._start, self._logprobs = None, {}
        generation_config.do_sample = True
        others = [p for p in logits_processor if p is not self and not type(p).__name__.endswith("Warper")]
        processors = LogitsProcessorList([*others, self])
        return model._sample(
            input_ids,
            logits_processor=processors,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            **options,
        )


def _seed(seed: Any) -> int:
    """Return a seed as an int."""
    if not check.is_integer(seed):
        raise TypeError(f"seeds: expected integers, got {type(seed).__name__}")
    found = operator.index(seed)
    if not 0 <= found < 1 << 43:
        raise ValueError(f"seeds: expected integers from 0 to 2^43 - 1, got {found}")
    return found
