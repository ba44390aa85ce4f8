"""Tests of bench.compare: every line (a timed call) runs, every room has a line, and the verdicts are right."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bench import compare
from bench.compare import ROOT, Ratio, Worker
from bench.compare_lines import LINES, timed


@pytest.mark.filterwarnings("ignore:max_iter")
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_every_line_runs(line) -> None:
    assert timed(line.make(), 1) > 0


def test_every_room_has_a_line() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "softargmax").glob("*/__init__.py")}
    assert {line.room for line in LINES} == rooms - {
        "core",
        "cli",
        "integrate",
        "parallel",
    }  # the last two have no kernels
    assert len(LINES) == len({line.name for line in LINES}) == 26


@pytest.mark.slow
def test_a_worker_answers() -> None:
    worker = Worker(sys.executable)
    repeats = worker.ask(0)
    assert repeats > 1
    assert 0 < worker.ask(0, repeats) < 1
    assert worker.close() == 0


def test_the_error_names_an_install_that_fails(tmp_path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(SystemExit, match="python: ended with status 3"):
        Worker(str(broken))


@pytest.mark.parametrize(
    ("ratio", "margin", "holds"),
    [(1.2, 0.0, True), (0.97, 0.0, True), (0.96, 0.01, False), (0.955, 0.05, True), (1.2, 0.06, False)],
)
def test_verdicts(ratio: float, margin: float, holds: bool) -> None:
    assert Ratio("loss", "a line", 1.0, ratio, margin).holds == holds


def test_of_a_slow_line_the_middle_of_five_results_counts(monkeypatch) -> None:
    def results(*ratios: float) -> dict[int, Ratio]:
        return {line: Ratio("loss", str(line), 1.0, ratio, 0.01) for line, ratio in enumerate(ratios)}

    def measured(a, b, chosen) -> dict[int, Ratio]:
        return {line: ratio for line, ratio in next(more).items() if chosen(line, "loss")}

    monkeypatch.setattr(compare, "measured", measured)
    more = iter([results(5.0, *ratios) for ratios in ((1.02, 0.93), (0.99, 1.2), (0.95, 0.92), (1.3, 0.7))])
    assert [line.ratio for line in compare.confirmed("a", "b", results(0.98, 0.9, 0.8))] == [0.98, 0.99, 0.92]
    assert [line.ratio for line in compare.confirmed("a", "b", results(0.97, 1.0, 1.1))] == [0.97, 1.0, 1.1]


def test_noisy_results_do_not_count(monkeypatch) -> None:
    def result(ratio: float, margin: float) -> dict[int, Ratio]:
        return {0: Ratio("loss", "a line", 1.0, ratio, margin)}

    for margins, counted, holds in (((0.01, 0.2, 0.01, 0.01), 0.96, False), ((0.2, 0.2, 0.2, 0.2), 0.99, False)):
        more = iter(map(result, (0.96, 1.3, 0.99, 0.95), margins))
        monkeypatch.setattr(compare, "measured", lambda *_, more=more: next(more))
        (line,) = compare.confirmed("a", "b", result(1.2, 0.3))
        assert (line.ratio, line.holds, line.noisy) == (counted, holds, margins[0] > 0.05)


def test_a_name_that_is_no_revision_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", "no-such-revision", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "no-such-revision" in done.stderr
