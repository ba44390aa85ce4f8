"""``softargmax info``: versions, processor, and usable implementations."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

import softargmax
from softargmax import measure
from softargmax.cli import render
from softargmax.core import dispatch
from softargmax.core.extras import install

PACKAGES = (
    *("numpy", "array-api-compat", "torch", "jax", "dask", "scipy", "scikit-learn"),
    *("matplotlib", "typer", "rich"),
)
NEEDS = {
    "torch": "torch",
    "torch-cuda": "torch",
    "torch-device": "torch",
    "jax": "jax",
}  # the package that a kind of array requires
WHAT = {
    "numpy": "NumPy arrays",
    "torch": "torch tensors in CPU memory",
    "torch-cuda": "torch tensors on CUDA devices",
    "torch-device": "torch tensors on other devices",
    "jax": "JAX arrays",
    "array-api": "CuPy and other array-API arrays",
}

SERVED = [(kind, name) for kind in WHAT for name, kinds in dispatch.SERVES.items() if kind in kinds]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def command(json: Json = False) -> None:
    """Show versions, instruction set, threads, and the usable implementations."""
    facts = gathered()
    if json:
        print(render.as_json(facts))
        return
    out = render.console()
    out.print(f"[bold]softargmax {facts['version']}[/]")
    machine = facts["machine"]
    out.print(f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}")
    native = facts["native"]
    if "unusable" in native:
        out.print(f"native core: not usable: {escape(native['unusable'])}")
    else:
        others = [isa for isa, here in native["isas"].items() if here and isa != native["isa"]]
        lacking = [isa for isa, here in native["isas"].items() if not here]
        also = f" (available too: {', '.join(others)}; SOFTARGMAX_ISA selects one)" if others else ""
        also += f" (not supported by this processor: {', '.join(lacking)})" if lacking else ""
        out.print(f"native core: {native['isa']}{also}, {native['threads']} threads")
    shown = render.table("arrays", "implementation", "usable")
    shown.columns[1].justify = shown.columns[2].justify = "left"
    shown.columns[2].no_wrap = False
    for row in facts["implementations"]:
        verdict = "[green]yes[/]" if row["usable"] else f"no: {escape(row['why'])}"
        shown.add_row(WHAT.get(row["arrays"], row["arrays"]), f"{row['room']}.{row['implementation']}", verdict)
    out.print(shown)
    versions = [f"{name} {version or '[dim]not installed[/]'}" for name, version in facts["packages"].items()]
    out.print(", ".join(versions))


def gathered() -> dict[str, Any]:
    """Return all reported facts as JSON values."""
    return {
        "version": version(),
        "machine": measure.machine(),
        "native": native(),
        "implementations": [usable(room, *key) for room in rooms() for key in SERVED],
        "packages": {name: measure.package_version(name) for name in PACKAGES},
    }


def version() -> str:
    """Return the library's version."""
    return softargmax.__version__


def native() -> dict[str, Any]:
    """Return the facts about the compiled core, or the reason why it cannot be loaded."""
    try:
        from softargmax.core import native as core
    except (ImportError, ValueError, RuntimeError) as error:
        return {"unusable": str(error)}
    return dict(core.info())


def rooms() -> list[str]:
    """Return the names of the subpackages ("rooms") that define operations."""
    home = Path(softargmax.__file__).parent
    return sorted(records.parent.name for records in home.glob("*/operations.py"))


def usable(room: str, kind: str, implementation: str) -> dict[str, Any]:
    """Return a row of the table: room, arrays, implementation, True if it is usable, and the reason if it is not."""
    row = {"room": room, "arrays": kind, "implementation": implementation, "usable": False, "why": None}
    needed = NEEDS.get(kind)
    if needed is not None and find_spec(needed) is None:
        return {**row, "why": f"{needed} is not installed: {install(needed)}"}
    try:
        importlib.import_module(f"softargmax.{room}.operations")
    except (ImportError, OSError, RuntimeError, ValueError) as error:
        return {**row, "why": " ".join(str(error).split())}
    return {**row, "usable": True}
