"""In docs/coming-from.md, both calls of every pair give the same result."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softargmax as sa

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from.md").read_text(encoding="utf-8")
PAIRS = [
    (section.splitlines()[0], *pair)
    for section in PAGE.split("\n## ")[1:]
    for pair in re.findall(r"^\| `(.+?)` \| `(.+?)` \|$", section, re.MULTILINE)
]
NEEDS = {"torch": ["torch"], "SciPy": ["scipy"], "entmax": ["torch", "entmax"]}
NEEDS["Hugging Face transformers"] = ["torch", "transformers"]


def names(section: str) -> dict[str, Any]:
    """Return the variables that the calls in a section of the page may use."""
    rng = np.random.default_rng(0)
    if section == "SciPy":
        here: dict[str, Any] = {"special": importlib.import_module("scipy.special")}
        here |= {"stats": importlib.import_module("scipy.stats")}
        return here | {"x": rng.standard_normal((3, 5)), "x2": rng.standard_normal((3, 5))}
    torch = importlib.import_module("torch")
    draw = lambda *shape: torch.from_numpy(rng.standard_normal(shape))  # noqa: E731
    here = {
        "torch": torch,
        "F": torch.nn.functional,
        "z": draw(4, 6),
        "z2": draw(4, 6),
        "y": torch.tensor([5, 0, 2, 2]),
    }
    here |= {"seen": draw(4, 6) > -0.5, "weight": draw(6).abs(), "h": draw(4, 3), "w": draw(6, 3), "b": draw(6)}
    here |= {"pixels": draw(2, 6, 7), "labels": torch.arange(14).reshape(2, 7) % 6, "added": draw(2, 3, 5, 5)}
    here |= {name: draw(2, 3, 5, 8) for name in "qkv"} | {"pairs": torch.ones(5, 5, dtype=torch.bool).tril(1)}
    if section == "entmax":
        here["entmax"] = importlib.import_module("entmax")
    if section.startswith("Hugging"):
        here["hf"] = importlib.import_module("transformers.generation.logits_process")
    return here


@pytest.mark.parametrize(("section", "theirs", "ours"), PAIRS, ids=[theirs for _, theirs, _ in PAIRS])
def test_pairs(section: str, theirs: str, ours: str) -> None:
    for library in NEEDS[section]:
        pytest.importorskip(library)
    here = names(section)
    wanted, found = (np.asarray(eval(call, here | {"sa": sa})) for call in (theirs, ours))  # noqa: S307 our own page
    close = 1e-6 if "entmax" in theirs else 1e-12  # entmax's bisection is accurate to about 1e-9
    np.testing.assert_allclose(found, wanted, rtol=close, atol=close)


def test_every_table_was_read() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert len(rows) == len(PAIRS)
    assert {section for section, _, _ in PAIRS} == set(NEEDS)


def test_the_differences() -> None:
    """softargmax differs from other libraries in the ways that the page describes below its tables."""
    torch = pytest.importorskip("torch")
    here = names("torch")
    q, k, v, sdpa = here["q"][..., :3, :], here["k"], here["v"], torch.nn.functional.scaled_dot_product_attention
    last = sdpa(q, k, v, attn_mask=torch.ones(3, 5, dtype=torch.bool).tril(2))
    torch.testing.assert_close(sa.attention(q, k, v, causal=True), last)
    assert not torch.allclose(sdpa(q, k, v, is_causal=True), last)
    ignored = torch.full((4,), -100)
    assert torch.nn.functional.cross_entropy(here["z"], ignored).isnan()
    assert sa.cross_entropy(here["z"], ignored) == 0
    with pytest.raises(IndexError, match=r"target: expected 0 to 5, or -100 \(ignored\), got 6 at \(1,\)"):
        sa.cross_entropy(here["z"], torch.tensor([0, 6, 0, 0]))
    nothing = torch.zeros(4, 6, dtype=torch.bool)
    assert (sa.softmax(here["z"], where=nothing) == 0).all()
    with pytest.raises(ValueError, match="signed_logsumexp"):
        sa.logsumexp(here["z"], weights=-here["weight"])
    x = here["z"] / 0.5
    torch.testing.assert_close(sa.logsumexp(here["z"], temperature=0.5), 0.5 * x.logsumexp(-1))
    torch.testing.assert_close(sa.softmax_with_lse(here["z"], temperature=0.5).lse, x.logsumexp(-1))
    with pytest.raises(ValueError, match=r"alpha: expected a finite number above 0, got 0.0"):
        sa.entmax(here["z"], 0.0)
    drawn = sa.categorical(here["z"], num_samples=3, replace=False, seed=0)
    assert drawn.tolist() == sa.categorical(here["z"].numpy(), num_samples=3, replace=False, seed=0).tolist()
