"""Every public name of the committed list can be imported and called as before. New names may be added."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
from tests.digests.public_names import MODULES, Parameters, parameters

pytest.importorskip("torch")
pytest.importorskip("sklearn")
NAMES: dict[str, dict[str, Parameters | None]] = json.loads(Path(__file__).with_name("public_names.json").read_text())


def test_every_module_is_listed() -> None:
    assert set(NAMES) == set(MODULES)
    assert sum(map(len, NAMES.values())) > 150


@pytest.mark.parametrize("module", MODULES)
def test_names_import_and_accept_the_same_parameters(module: str) -> None:
    here = import_module(module)
    assert not NAMES[module].keys() - set(here.__all__)
    for name, before in NAMES[module].items():
        now = parameters(getattr(here, name))
        if before is not None:
            assert now is not None, name
            for parameter, kind in before.items():
                if kind != "variadic keyword":  # a function that took **options may now list them
                    may = {kind, kind.replace("positional-only", "positional or keyword")}
                    found = now.get(parameter, "")
                    if " = " not in kind:  # a parameter that was required may now have a default
                        found = found.partition(" = ")[0]
                    assert found in may, (name, parameter)


def test_modules_are_attributes() -> None:
    import softargmax

    assert softargmax.nn.__name__ == "softargmax.nn"
    assert softargmax.stream.__name__ == "softargmax.stream"
    assert set(NAMES["softargmax"]) <= set(dir(softargmax))
