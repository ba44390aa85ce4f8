"""Draw the tokens of requests alone and in padded batches, and compare them, for each family of the tests.

    python -m bench.requests            200 requests for each family; writes bench/results/requests.json
    python -m bench.requests Llama T5   only these families; writes nothing

Given the same logits, `Sampler` draws the same tokens at any place in any batch. But torch computes a product of other
shapes in another order, so the logits of a request differ a little between batches. For every request whose tokens
differ, this program shows that they follow from the logits: at the first step that differs, the draws from both logits
are the tokens of both runs. The exit code is 1 if a difference has another reason.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from bench.machine import machine
from tests.integrate.models import DECODERS, TRANSLATORS, model_of

import softargmax
from softargmax import integrate
from softargmax.integrate.sampler import STEPS

RESULT = Path(__file__).parent / "results" / "requests.json"
REQUESTS, TOKENS = 200, 12
FILTERS: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95}
Run = tuple[torch.Tensor, torch.Tensor]
"""The tokens of a request, (TOKENS,), and their logits, (TOKENS, K)."""


def prompts() -> list[torch.Tensor]:
    """Return the prompts, of 3 to 24 tokens."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(3, 25, (REQUESTS,), generator=generator).tolist()
    return [torch.randint(2, 101, (n,), generator=generator) for n in lengths]


def run(model: Any, texts: list[torch.Tensor], seeds: list[int]) -> list[Run]:
    """Generate a batch of requests. Translators take padding on the right, other models on the left."""
    width = max(map(len, texts))
    sides = [(0, width - len(x)) if model.config.is_encoder_decoder else (width - len(x), 0) for x in texts]
    tokens, seen = (
        torch.stack([torch.nn.functional.pad(x, side) for x, side in zip(rows, sides, strict=True)])
        for rows in (texts, [torch.ones_like(x) for x in texts])
    )
    found = model.generate(
        tokens,
        attention_mask=seen,
        custom_generate=integrate.Sampler(seeds, **FILTERS).generate,
        min_new_tokens=TOKENS,
        max_new_tokens=TOKENS,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return list(zip(found.sequences[:, -TOKENS:], torch.stack(found.logits, 1), strict=True))


LARGEST = 1e-6
"""The largest relative difference of logits that torch's products of other shapes may make."""


def batches(count: int) -> list[range]:
    """Cut the requests into batches of 2 to 16, and one of the rest."""
    found, begin, size = [], 0, 2
    while begin < count:
        found.append(range(begin, min(begin + size, count)))
        begin += size
        size = size + 1 if size < 16 else 2
    return found


def compare(alone: Run, together: Run, seed: int) -> tuple[float, bool, bool]:
    """Return the largest relative difference of logits, whether the tokens differ, and whether the logits explain it.

    Logits count up to the first token that differs.
    """
    differs = bool((alone[0] != together[0]).any())
    steps = int((alone[0] != together[0]).int().argmax()) + 1 if differs else TOKENS
    a, b = alone[1][:steps], together[1][:steps]
    difference = float((a - b).abs().max() / a.abs().max())
    stream = torch.tensor(STEPS * seed + steps - 1)
    drawn = [int(softargmax.categorical(z[-1], seed=0, stream=stream, **FILTERS)) for z in (a, b)]
    return difference, differs, drawn == [int(alone[0][steps - 1]), int(together[0][steps - 1])]


def measure(family: str) -> dict[str, Any]:
    """Compare all requests of a family."""
    model = model_of(family)
    with torch.no_grad():
        model.get_output_embeddings().weight *= 20  # so that the logits matter
    model.generation_config.forced_eos_token_id = None  # BART would force its last token, before the sampler
    texts = prompts()
    alone = [run(model, [text], [seed])[0] for seed, text in enumerate(texts)]
    together = [pair for batch in batches(len(texts)) for pair in run(model, [texts[i] for i in batch], [*batch])]
    found = [compare(a, b, seed) for seed, (a, b) in enumerate(zip(alone, together, strict=True))]
    return {
        "family": family,
        "requests": len(found),
        "differ": sum(differs for _, differs, _ in found),
        "unexplained": sum(not explained for _, _, explained in found),
        "largest difference of logits": max(difference for difference, _, _ in found),
    }


def main(words: list[str]) -> int:
    """Compare the families. Return the exit code."""
    integrate.register()
    here, results = machine(), []
    for family in words or [*DECODERS, *TRANSLATORS]:
        results.append(measure(family))
        print(
            *(
                f"{name}: {value:.2g}" if isinstance(value, float) else f"{name}: {value}"
                for name, value in results[-1].items()
            ),
            sep=", ",
            flush=True,
        )
    if not words:
        RESULT.write_text(json.dumps({"machine": here, "requests": results}, indent=1) + "\n", encoding="utf-8")
        print("wrote", RESULT)
    return int(any(one["unexplained"] or one["largest difference of logits"] > LARGEST for one in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
