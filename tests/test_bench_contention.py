"""Tests of the limits of bench.contention."""

from __future__ import annotations

import pytest
from bench.contention import LINEAR, ONE_CORE, misses

CONDITIONS = ("alone", "one busy process", "one busy process per core", ONE_CORE)


def times(ours: float, theirs: float, changed: dict[tuple[str, str], float]) -> dict[str, dict[str, dict[str, float]]]:
    """Return times with a slowdown of 1.5 for both sides, except for our times in `changed`."""

    def sides(condition: str, name: str) -> dict[str, float]:
        slow = 1.0 if condition == "alone" else 1.5
        return {"softargmax": changed.get((condition, name), ours * slow), "torch": theirs * slow}

    return {
        condition: {name: sides(condition, name) for name in ("softmax", LINEAR, f"{LINEAR}, backward")}
        for condition in CONDITIONS
    }


@pytest.mark.parametrize(
    ("changed", "share", "found"),
    [
        ({}, 0.8, []),
        ({(ONE_CORE, "softmax"): 2.0}, 0.9, ["the slowdown is 1.33 times torch's, above 1.3"]),
        ({("one busy process per core", "softmax"): 1.94}, 0.9, []),
        ({("one busy process", LINEAR): 1.91}, 0.9, ["one busy process: a slowdown of 1.91, above 1.9"]),
        ({("one busy process", f"{LINEAR}, backward"): 1.91}, 0.9, ["backward, one busy process: a slowdown of 1.91"]),
        ({}, 0.79, ["2 threads finish 0.79 of the calls, below 0.8"]),
    ],
    ids=["none", "slowdown", "slowdown within the limit", "linear", "backward", "share"],
)
def test_each_limit(changed: dict[tuple[str, str], float], share: float, found: list[str]) -> None:
    missed = misses(times(1.0, 1.5, changed), {"softargmax": share, "torch": 1.0})
    assert len(missed) == len(found)
    assert all(text in one for text, one in zip(found, missed, strict=True))


def test_a_call_that_is_faster_alone_must_stay_faster() -> None:
    changed = {("one busy process", "softmax"): 1.516}  # torch's time is 1.515
    missed = misses(times(1.0, 1.01, changed), {"softargmax": 1.0, "torch": 1.0})
    assert missed == ["softmax, one busy process: slower than torch, but faster alone"]


def test_scipy_runs_on_one_thread_so_only_the_order_counts() -> None:
    of_arrays = {"alone": 1.0, "one busy process": 1.9, "one busy process per core": 3.9, ONE_CORE: 4.1}
    found = {condition: {"softmax, NumPy": {"softargmax": ours, "SciPy": 4.0}} for condition, ours in of_arrays.items()}
    missed = misses(found, {"softargmax": 1.0, "torch": 1.0})
    assert missed == [f"softmax, NumPy, {ONE_CORE}: slower than SciPy, but faster alone"]
