"""Tests of bench.promises and bench.machine: when a result is written, where, and beside which limits."""

from __future__ import annotations

import json
from itertools import cycle

import pytest

pytest.importorskip("torch")

from bench import machine, promises
from bench.promises import Promise

from softargmax.measure import OURS, Case, Limits, Result, Timing

ONLY = {
    "SOFTARGMAX_ISA": "x86-64-v3",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}
"""The variables of `make bench-avx2`."""


def result(*medians: float, spread: float = 1.0) -> Result:
    sides = zip((OURS, "torch"), medians, strict=True)
    return Result("a case", {side: Timing(median, median, spread * median, 5) for side, median in sides}, 100, 100.0)


@pytest.mark.parametrize(
    ("results", "counted", "quiet"),
    [
        ([result(1, 2)], 0, True),
        ([result(1, 2, spread=1.2), result(3, 4, spread=1.1)], 1, True),
        ([result(1, 2, spread=2), result(1.2, 2, spread=2), result(1.05, 2.1, spread=2)], 2, True),
        ([result(1.2**i, 2, spread=2) for i in range(promises.TRIES)], promises.TRIES - 1, False),
        ([result(1, 1.2**i, spread=2) for i in range(promises.TRIES)], promises.TRIES - 1, False),
    ],
    ids=["quiet", "the second is quiet", "two agree", "ours drifts", "the peer drifts"],
)
def test_a_disturbed_case_is_measured_again(monkeypatch, results: list[Result], counted: int, quiet: bool) -> None:
    more = iter(results)
    monkeypatch.setattr(promises, "measure", lambda *_, **__: next(more))
    assert promises.undisturbed(Case("a case", {}), 5) == (results[counted], quiet)


@pytest.mark.parametrize(
    ("best", "isa", "variables", "found"),
    [
        ("x86-64-v4", "x86-64-v4", {}, promises.RESULTS),
        ("x86-64-v4", "x86-64-v3", ONLY, promises.AVX2),
        ("x86-64-v3", "x86-64-v3", {}, promises.AVX2),
        ("neon", "neon", {}, promises.RESULTS),
        ("x86-64-v4", "x86-64-v3", {"SOFTARGMAX_ISA": "x86-64-v3"}, None),
        ("x86-64-v4", "x86-64-v4", {"ATEN_CPU_CAPABILITY": "avx2"}, None),
        ("x86-64-v4", "baseline", {}, None),
    ],
)
def test_the_folder_is_that_of_the_instruction_sets(monkeypatch, best, isa, variables, found) -> None:
    for name in ONLY:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(promises, "isa", lambda: isa)
    monkeypatch.setattr(promises, "processor", lambda: {"isas": [best, "baseline"]})
    if found:
        assert promises.folder() == found
    else:
        with pytest.raises(SystemExit, match="make bench-avx2"):
            promises.folder()


class Watched:
    """Stands in for `bench.machine.Run`."""

    def machine(self) -> dict[str, object]:
        return {}


@pytest.fixture
def written(monkeypatch, tmp_path):
    """Return a function that runs a bench of one case, and returns its exit code and its record, or None."""
    rates = cycle([Limits(10.0, 5.0, 2), Limits(8.0, 20.0, 2)])
    monkeypatch.setattr(promises, "machine_limits", lambda _: next(rates))
    monkeypatch.setattr(promises, "folder", lambda: tmp_path)
    monkeypatch.setattr(promises, "Run", Watched)
    monkeypatch.setattr("sys.argv", ["bench"])

    def run(found: Result) -> tuple[int, object]:
        monkeypatch.setattr(promises, "measure", lambda *_, **__: found)
        monkeypatch.setattr(promises, "AGREEMENT", 0.9)  # no two results agree
        code = promises.main("", [Promise("a case", {}, {"torch": 1.5})], "room")
        return code, json.loads((tmp_path / "room.json").read_text())

    return run


def test_the_better_limits_count(written) -> None:
    code, record = written(result(1, 2))
    assert code == 0
    assert record["limits"] == {"copy_bytes": 10.0, "multiply_adds": 20.0, "threads": 2}
    assert record["results"][0]["limits"] == {"memory": 5.0, "arithmetic": 5.0}


def test_a_missed_promise_is_written(written) -> None:
    code, record = written(result(1, 1.4))
    assert (code, record["results"][0]["ratios"]) == (1, {"torch": 1.4})


def test_a_disturbed_run_is_not_written(written, tmp_path) -> None:
    with pytest.raises(SystemExit, match="wrote nothing: disturbed cases: a case"):
        written(result(1, 2, spread=1.2))
    assert not list(tmp_path.iterdir())


def test_other_programs_are_counted(monkeypatch) -> None:
    times = iter([(0.0, 100.0, 7.0), (2.0, 100.5, 7.25), (2.0, 100.5, 7.25), (12.0, 112.0, 18.25)])
    monkeypatch.setattr(machine, "seconds", lambda: next(times))
    monkeypatch.setattr(machine.time, "sleep", lambda _: None)
    watched = machine.Run()
    assert watched.machine()["others"] == {"before": 0.12, "during": 0.05}


def test_a_run_beside_other_programs_is_refused(monkeypatch) -> None:
    times = iter([(0.0, 0.0, 0.0), (2.0, 0.0, 0.0), (2.0, 0.0, 0.0), (12.0, 11.2, 10.0)])
    monkeypatch.setattr(machine, "seconds", lambda: next(times))
    monkeypatch.setattr(machine.time, "sleep", lambda _: None)
    with pytest.raises(SystemExit, match=r"other programs used 0\.12 processors during the run, above 0\.1"):
        machine.Run().machine()


def test_the_processors_count_what_this_process_uses() -> None:
    clock, everything, own = machine.seconds()
    while machine.seconds()[2] < own + 0.2:
        pass
    after = machine.seconds()
    assert after[0] > clock
    assert after[1] - everything > 0.15  # in ticks of 10 ms
