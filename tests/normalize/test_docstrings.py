"""The docstrings of `softargmax.normalize` contain the required sections, in the required order."""

from __future__ import annotations

from itertools import pairwise

import pytest

import softargmax.normalize as room

SECTIONS = ["Parameters", "Returns", "Raises", "Notes", "References", "Examples"]
FUNCTIONS = [name for name in room.__all__ if name.islower()]
WITH_RAISES = {
    "softmin",
    "hardmax",
    "softmax_with_lse",
    "logcumsumexp",
    "signed_logsumexp",
    "segment_softmax",
    "segment_log_softmax",
    "segment_logsumexp",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sections(name: str) -> None:
    lines = [line.strip() for line in (getattr(room, name).__doc__ or "").splitlines()]
    found = [a for a, b in pairwise(lines) if a in SECTIONS and b == "-" * len(a)]
    expected = [section for section in SECTIONS if section != "Raises" or name in WITH_RAISES or section in found]
    assert found == expected
