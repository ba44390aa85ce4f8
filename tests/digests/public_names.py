"""Print the public names of an installation, and the parameters of each, as JSON.

PYTHONPATH=THIS_CLONE ANY_INSTALLATION/bin/python -m tests.digests.public_names > public_names.json
"""

from __future__ import annotations

import inspect
import json
import sys
from importlib import import_module

MODULES = ("softargmax", *(f"softargmax.{room}" for room in (
    "normalize", "sparse", "sample", "loss", "attend", "output", "stream", "classify", "nn", "cli",
)))  # fmt: skip

Parameters = dict[str, str]
"""The kind and the default of each parameter, by name."""


def parameters(thing: object) -> Parameters | None:
    """Return the parameters of an object, or None if it has no signature."""
    if not callable(thing):
        return None
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return None
    return {
        name: f"{x.kind.description}" + ("" if x.default is x.empty else f" = {x.default!r}")
        for name, x in signature.parameters.items()
    }


def found() -> dict[str, dict[str, Parameters | None]]:
    """Return the public names of each module, with their parameters."""
    modules = {name: import_module(name) for name in MODULES}
    return {
        name: {public: parameters(getattr(module, public)) for public in sorted(module.__all__)}
        for name, module in modules.items()
    }


if __name__ == "__main__":
    lines = [
        f"{json.dumps(module)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(given)}" for name, given in names.items())
        + "\n}"
        for module, names in found().items()
    ]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")
