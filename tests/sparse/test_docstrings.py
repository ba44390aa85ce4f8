"""Every public docstring of softargmax.sparse has a formula, a gradient and the required sections in order."""

from __future__ import annotations

from itertools import pairwise

import pytest

import softargmax.sparse as room

SECTIONS = ["Parameters", "Returns", "Raises", "Notes", "References", "Examples"]


@pytest.mark.parametrize("name", [name for name in room.__all__ if name.islower()])
def test_docstrings_have_the_required_sections(name: str) -> None:
    text = getattr(room, name).__doc__ or ""
    lines = [line.strip() for line in text.splitlines()]
    assert [a for a, b in pairwise(lines) if a in SECTIONS and b == "-" * len(a)] == SECTIONS
    assert ".. math::" in text
    assert "Gradient" in text
