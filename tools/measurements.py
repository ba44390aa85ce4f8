"""Read the committed measurements (bench/results), and format them for pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
NOT_YET = "*Not measured yet.*"
PEERS = {"torch": "torch", "scipy": "SciPy", "numpy": "NumPy", "jax": "JAX", "sgemm": "products alone"}


def load(path: Path) -> dict[str, Any] | None:
    """Read one result file. Return None if it does not exist."""
    return loaded(path) if path.exists() else None


def loaded(path: Path) -> dict[str, Any]:
    """Read one result file, which must exist."""
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def avx2_results(name: str) -> list[dict[str, Any]]:
    """Return the results of the run with AVX2 only, or an empty list if there are none."""
    record = load(RESULTS / "avx2" / f"{name}.json")
    return record["results"] if record else []


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table whose columns after the first are numbers."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def measured_on(record: dict[str, Any], *, packages: bool = True) -> str:
    """Return a sentence that names the machine and, if `packages` is True, the package versions."""
    machine = record.get("machine", {})
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("packages", {}).items())
    used = f" with {versions}" if packages else ""
    where = ", ".join([machine.get("cpu", "an unnamed machine"), *facts_of(machine)])
    return f"Measured{used} on {where}."


def facts_of(machine: dict[str, Any]) -> list[str]:
    """Return what identifies the processor even where a virtual machine hides its name, and the load before the run."""
    found, processor = [], machine.get("processor", {})
    if processor:
        found.append(" ".join(f"{name} {processor[name]}" for name in ("family", "model") if name in processor))
        found += [f"{level} {size}" for level, size in processor["caches"].items()]
        found.append(processor["isas"][0])
    found.append(f"{machine.get('cores', '?')} cores")
    return [*found, *([f"load {machine['load']}"] if "load" in machine else [])]
