"""The docstrings of the losses have all required sections in order, a formula and a gradient."""

from __future__ import annotations

from itertools import pairwise

import pytest

import softargmax.loss as room

SECTIONS = ["Parameters", "Returns", "Raises", "Notes", "References", "Examples"]


@pytest.mark.parametrize("name", [name for name in room.__all__ if name.islower()])
def test_sections(name: str) -> None:
    text = getattr(room, name).__doc__ or ""
    lines = [line.strip() for line in text.splitlines()]
    assert [a for a, b in pairwise(lines) if a in SECTIONS and b == "-" * len(a)] == SECTIONS
    assert ".. math::" in text
    notes = lines[lines.index("Notes") : lines.index("References")]
    assert any(line.startswith("Gradient: ") for line in notes)
