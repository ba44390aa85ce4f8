"""Speculative sampling: a small model's guesses, verified so that the large model's distribution is kept."""

from __future__ import annotations

from typing import Any

from softargmax.core import check
from softargmax.core.arrays import INTEGERS, dtype_name, like
from softargmax.core.dispatch import as_number, implementation, namespace
from softargmax.core.exact import working_dtype
from softargmax.normalize import softmax
from softargmax.sample.draws import categorical, filter_scores
from softargmax.sample.options import ORDERS
from softargmax.sample.results import SpeculativeSample
from softargmax.sample.seeds import source


def speculative_sample() -> None:
    pass
