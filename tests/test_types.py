"""The type stubs agree with the functions that they declare. `make types` checks the programs under tests/types."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import softargmax

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "softargmax"
STUB = ast.parse((SOURCE / "__init__.pyi").read_text(encoding="utf-8"))
PARALLEL = ast.parse((SOURCE / "parallel" / "__init__.pyi").read_text(encoding="utf-8"))
PUBLIC = [name for name in softargmax.__all__ if name != "__version__"]
USERS = ("numpy_user", "torch_user", "dask_user")  # without jax_user, which compiles for 14 s

Parameters = list[tuple[str, str, object]]
"""The name, kind and default of each parameter."""


def declared(node: ast.FunctionDef) -> Parameters:
    """Return the parameters that a stub declares."""
    given, kinds = node.args, inspect.Parameter
    by_position = [(x, kinds.POSITIONAL_ONLY) for x in given.posonlyargs]
    by_position += [(x, kinds.POSITIONAL_OR_KEYWORD) for x in given.args]
    defaults: list[ast.expr | None] = [None] * (len(by_position) - len(given.defaults)) + list(given.defaults)
    by_name = [(x, kinds.KEYWORD_ONLY) for x in given.kwonlyargs]
    more = [] if given.vararg is None else [(given.vararg, kinds.VAR_POSITIONAL)]
    return [
        (x.arg, kind.name, kinds.empty if default is None else ast.literal_eval(default))
        for (x, kind), default in zip(
            [*by_position, *more, *by_name], [*defaults, *[None] * len(more), *given.kw_defaults], strict=True
        )
    ]


def real(function: Any) -> Parameters:
    """Return the parameters that a function has."""
    return [(x.name, x.kind.name, x.default) for x in inspect.signature(function).parameters.values()]


def known(parameters: Parameters) -> Parameters:
    """Return the parameters without `like` and `kappa`.

    Overloads declare these two differently, because these parameters decide the type of the result.
    """
    return [x for x in parameters if x[0] not in {"like", "kappa"}]


def declarations(body: list[ast.stmt], name: str) -> list[ast.FunctionDef]:
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert found, f"{name} is not declared"
    return found


def test_the_generated_files_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "stubs.py"), "--check"], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("name", [n for n in PUBLIC if not isinstance(getattr(softargmax, n), type)])
def test_every_declaration_has_the_parameters_of_the_function(name: str) -> None:
    function = getattr(softargmax, name)
    for node in declarations(STUB.body, name):
        assert known(declared(node)) == known(real(function))
        assert not re.search(r"(?<!\[)\bAny\b(?!\])", ast.unparse(node.args))


@pytest.mark.parametrize("node", [x for x in PARALLEL.body if isinstance(x, ast.FunctionDef)], ids=lambda x: x.name)
def test_every_declaration_of_parallel_has_the_parameters_of_the_function(node: ast.FunctionDef) -> None:
    assert declared(node) == real(getattr(softargmax.parallel, node.name))
    assert not re.search(r"\bAny\b", ast.unparse(node))


@pytest.mark.parametrize("name", [n for n in PUBLIC if isinstance(getattr(softargmax, n), type)])
def test_every_class_has_the_fields_and_methods_that_are_declared(name: str) -> None:
    one = getattr(softargmax, name)
    (node,) = (x for x in STUB.body if isinstance(x, ast.ClassDef) and x.name == name)
    fields = [x.target.id for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)]
    assert tuple(fields) == getattr(one, "_fields", ())
    methods = {x.name for x in node.body if isinstance(x, ast.FunctionDef)}
    assert methods == {x for x in vars(one) if not x.startswith("_")} - {*fields, "count"} - {*vars(tuple)}
    for method in methods:
        found = inspect.getattr_static(one, method)
        function = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        for declaration in declarations(node.body, method):
            assert known(declared(declaration)) == known(real(function))
    assert one[int] is not one  # so that SoftmaxWithLse[Tensor] is a valid annotation


def test_every_public_name_is_documented() -> None:
    text = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
    documented = re.findall(r"^   ([\w.]+)$", text, re.MULTILINE)
    rooms = ("classify", "nn", "output", "parallel", "stream")
    modules = {room: importlib.import_module(f"softargmax.{room}") for room in rooms}
    names = [*PUBLIC, *(f"{room}.{name}" for room, module in modules.items() for name in module.__all__)]
    found = [name for name in documented if not name.startswith(("integrate.", "jax."))]
    assert sorted(found) == sorted({*names} - {"stream.whole_file"})


@pytest.mark.parametrize(("name", "needs"), [("integrate", "transformers"), ("jax", "jax")])
def test_every_public_name_of_a_module_that_needs_another_is_documented(name: str, needs: str) -> None:
    pytest.importorskip(needs)
    module = importlib.import_module(f"softargmax.{name}")
    text = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
    assert sorted(re.findall(rf"^   {name}\.(\w+)$", text, re.MULTILINE)) == sorted(module.__all__)


def test_call_of_a_module_has_the_signature_of_its_forward() -> None:
    found = 0
    for path in (x for x in SOURCE.rglob("*.py") if "def __call__" in x.read_text(encoding="utf-8")):
        for owner in (x for x in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(x, ast.ClassDef)):
            for block in (x for x in owner.body if isinstance(x, ast.If)):
                (call,), (forward,) = declarations(block.body, "__call__"), declarations(owner.body, "forward")
                assert ast.unparse(call.args) == ast.unparse(forward.args)
                found += 1
    assert found >= 10


@pytest.mark.parametrize("user", USERS)
def test_the_programs_of_users_run(user: str) -> None:
    runpy.run_path(str(ROOT / "tests" / "types" / f"{user}.py"))
