"""Read the committed measurements (bench/results), and format them for pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
NOT_YET = "*Not measured yet.*"
ISAS = {"x86-64-v4": "AVX-512", "x86-64-v3": "AVX2"}
PEERS = {"torch": "torch", "scipy": "SciPy", "numpy": "NumPy", "jax": "JAX", "sgemm": "products alone"}


def load(path: Path) -> dict[str, Any] | None:
    """Read one result file. Return None if it does not exist."""
    return loaded(path) if path.exists() else None


def loaded(path: Path) -> dict[str, Any]:
    """Read one result file, which must exist."""
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def avx2_record(name: str) -> dict[str, Any] | None:
    """Return the record of the run with AVX2 only, or None if there is none."""
    return load(RESULTS / "avx2" / f"{name}.json")


def benches() -> dict[str, dict[str, Any]]:
    """Return the records with timings, by the name of their file."""
    found = {path.stem: loaded(path) for path in sorted(RESULTS.glob("*.json"))}
    return {name: record for name, record in found.items() if "results" in record}


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table whose columns after the first are numbers."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])


def measured_on(record: dict[str, Any], *, packages: bool = True) -> str:
    """Return a sentence that names the machine and, if `packages` is True, the versions and the commit."""
    machine = record.get("machine", {})
    versions = ", ".join(f"{name} {version}" for name, version in machine.get("packages", {}).items())
    commit = f" (commit {machine['commit']})" if "commit" in machine else ""
    used = f" with {versions}{commit}" if packages else ""
    return f"Measured{used} on {where(machine)}."


def where(machine: dict[str, Any]) -> str:
    """Return the processor, and how many processors other programs used."""
    found = [processor_of(machine)]
    if "others" in machine:
        before, during = (machine["others"][when] for when in ("before", "during"))
        found.append(f"of which other programs used {before:g} before the run and {during:g} during it")
    if "load" in machine:
        found.append(f"load {machine['load']}")
    return ", ".join(found)


def processor_of(machine: dict[str, Any]) -> str:
    """Return what identifies the processor even where a virtual machine hides its name."""
    found, processor = [machine.get("cpu", "an unnamed machine")], machine.get("processor", {})
    if processor:
        found.append(" ".join(f"{name} {processor[name]}" for name in ("family", "model") if name in processor))
        found += [f"{level} {size}" for level, size in processor["caches"].items()]
        found.append(f"up to {processor['isas'][0]}")
    return ", ".join([*found, f"{machine.get('cores', '?')} cores"])
