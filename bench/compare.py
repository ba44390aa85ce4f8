"""Compare the speed of two installs of softargmax, for example before and after a change.

    python -m bench.compare A B              git revisions, or paths of Python executables that have an install
    python -m bench.compare main HEAD loss   only the lines of the room loss

A line is a timed call, listed in bench/compare_lines.py. Each revision is checked out under build/compare and built
there in its own environment. Long-lived processes run the lines. Each line is run first by two processes of A, by
turns. The relative difference of their medians is the margin. Then a process of A and a process of B run the line by
turns. A ratio is A's median of 15 runs divided by B's. If it is above 1, B is faster. A result is noisy if its margin
is above 0.05. Lines with a ratio below 0.97 or a noisy result are measured four times more, each time in new processes,
and the middle one of the results that are not noisy counts: two processes of the same install differ by up to 15
percent on some lines, depending on where their memory lies. A line passes if its ratio is at least 0.97, or below 1 by
at most the margin. It fails if all five results are noisy. A room passes if the geometric mean of its ratios is at
least 0.98.

The results are written to build/compare/result.json. The exit code is 1 if a line or a room fails. Run this program on
a quiet machine. It takes a few minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "compare"
LINE, ROOM = 0.97, 0.98
"""The smallest ratio that passes, for a line and for the mean of a room."""
NOISY = 0.05
"""The largest margin of a result that counts."""
RUNS = 15
MEASUREMENTS = 5
"""A line whose first result is below LINE or noisy is measured this many times in all, each time in new processes."""


@dataclass(frozen=True)
class Ratio:
    """The result of a line: the median of A in seconds, its ratio to the median of B, and the margin.

    The margin is the difference between two processes of A, relative to the second.
    """

    room: str
    name: str
    seconds: float
    ratio: float
    margin: float

    @property
    def noisy(self) -> bool:
        """True if two processes of the same install differ too much."""
        return self.margin > NOISY

    @property
    def holds(self) -> bool:
        """True if the result is not noisy, and the ratio is at least LINE, or below 1 by at most the margin."""
        return not self.noisy and self.ratio >= min(LINE, 1 - self.margin)

    def __str__(self) -> str:
        seconds, numbers = f"{1e3 * self.seconds:10.4f} ms", f"{self.ratio:7.3f} {self.margin:8.3f}"
        return f"{self.room:10} {self.name:42} {seconds} {numbers} {'NOISY' if self.noisy else verdict(self.holds):>9}"


def verdict(holds: bool) -> str:
    return "ok" if holds else "SLOWER"


class Worker:
    """A process that uses one install and runs lines on request (bench/compare_lines.py)."""

    def __init__(self, python: str) -> None:
        self.process = subprocess.Popen(
            [python, "-m", "bench.compare_lines"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0"},  # both processes lay out dictionaries in the same way
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hello = self._answer()

    def ask(self, line: int, repeats: int = 0) -> Any:
        """Return the seconds per call of a line. With 0 repeats, return the number of calls that a run needs."""
        print(json.dumps((line, repeats)), file=self.process.stdin, flush=True)
        return self._answer()

    def close(self) -> int:
        """End the process and return its status."""
        self.process.communicate()
        return self.process.returncode

    def _answer(self) -> Any:
        if answer := self.process.stdout.readline():
            return json.loads(answer)
        raise SystemExit(f"{self.process.args[0]}: ended with status {self.close()}")


def medians(first: Worker, second: Worker, line: int, repeats: int) -> tuple[float, float]:
    """Run a line in both processes by turns, in alternating order. Return the two medians in seconds per call."""
    samples: dict[Worker, list[float]] = {first: [], second: []}
    for turn in range(-1, RUNS):
        for worker in (first, second) if turn % 2 else (second, first):
            seconds = worker.ask(line, repeats)
            if turn >= 0:  # the first turn does not count: it makes inputs, touches pages and imports modules
                samples[worker].append(seconds)
    return statistics.median(samples[first]), statistics.median(samples[second])


def python_of(name: str) -> str:
    """Return the path of the Python of an install. For a revision, build the install first."""
    if Path(name).is_file():
        return str(Path(name).absolute())
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.check_output([*git, "rev-parse", "--verify", f"{name}^{{commit}}"], text=True).strip()
    tree = BUILD / commit[:12]
    if not tree.exists():
        subprocess.run([*git, "worktree", "prune"], check=True)  # forget worktrees whose folders were deleted
        subprocess.run([*git, "worktree", "add", "--detach", str(tree), commit], check=True)
    make = ["make", "-C", str(tree), "VENV=.venv"]
    subprocess.run([*make, ".venv/.native", ".venv/.group-tour"], check=True)
    return str(tree / ".venv" / "bin" / "python")


def measured(a: str, b: str, chosen: Callable[[int, str], bool]) -> dict[int, Ratio]:
    """Time the lines for which `chosen(number, room)` is true, in new processes. Return their ratios by number.

    Each line is timed first for two processes of A, which gives the margin, and then for A and B.
    """
    first, twin, other = Worker(a), Worker(a), Worker(b)
    print("A:", first.hello["softargmax"])
    print("B:", other.hello["softargmax"])
    print(f"{'':53} {'A':>10}    {'A / B':>8} {'margin':>8}")
    found = {}
    for line, (room, name) in enumerate(first.hello["lines"]):
        if not chosen(line, room):
            continue
        repeats = first.ask(line)
        mine, again = medians(first, twin, line, repeats)
        before, after = medians(first, other, line, repeats)
        found[line] = Ratio(room, name, before, before / after, abs(mine / again - 1))
        print(found[line], flush=True)
    for worker in (first, twin, other):
        worker.close()
    return found


def confirmed(a: str, b: str, found: dict[int, Ratio]) -> list[Ratio]:
    """Measure lines whose ratio is below LINE or noisy again, in new processes. Return the results of all lines.

    For a line that was measured again, the middle one of the results that are not noisy is returned, and the lower one
    of two in the middle.
    """
    again = {line for line, ratio in found.items() if ratio.ratio < LINE or ratio.noisy}
    if not again:
        return list(found.values())
    more = [measured(a, b, lambda line, _: line in again) for _ in range(MEASUREMENTS - 1)]
    middle = {}
    for line in again:
        results = sorted((r[line] for r in (found, *more)), key=attrgetter("ratio"))
        quiet = [ratio for ratio in results if not ratio.noisy] or results
        middle[line] = quiet[(len(quiet) - 1) // 2]
    return [middle.get(line, ratio) for line, ratio in found.items()]


def main() -> int:
    """Compare the two installs that the command line names. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", help="the old install: a git revision, or the path of a Python executable")
    parser.add_argument("b", help="the new install, in the same form")
    parser.add_argument("room", nargs="?", help="only the lines of this room")
    options = parser.parse_args()
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    cpu = processor[1] if processor else platform.machine()
    print(cpu)
    a, b = python_of(options.a), python_of(options.b)
    lines = confirmed(a, b, measured(a, b, lambda _, room: options.room in (None, room)))
    rooms = {}
    print("counted:")
    for line in lines:
        print(line)
    for room in dict.fromkeys(x.room for x in lines):
        rooms[room] = statistics.geometric_mean([x.ratio for x in lines if x.room == room])
        print(f"{room:10} {'geometric mean':42} {'':13} {rooms[room]:7.3f} {verdict(rooms[room] >= ROOM):>18}")
    holds = all(x.holds for x in lines) and min(rooms.values()) >= ROOM
    sides = {"a": options.a, "b": options.b}
    record = {"cpu": cpu, **sides, "holds": holds, "rooms": rooms, "lines": [asdict(x) for x in lines]}
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / "result.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(not holds)


if __name__ == "__main__":
    sys.exit(main())
