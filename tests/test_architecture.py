"""The house rules that a test can keep: imports, the recurrence, what a public name owes, tidiness."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from importlib import resources, util
from pathlib import Path

import pytest

import softargmax

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "softargmax"
PYTHON = sorted(SOURCE.rglob("*.py"))
NATIVE = sorted([*SOURCE.rglob("*.cpp"), *SOURCE.rglob("*.hpp")])
TEXTS = [*PYTHON, *NATIVE, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "bench").rglob("*.py"))]

# The only files in which one state's maximum is subtracted from another's.
STATE_FILES = {"core/state.py", "core/native/state.hpp", "core/triton_state.py"}

# Which files serve a framework, and so may import it at their top.
SERVES = {
    "torch": r"(.*/)?(torch_\w+|modules|nn)\.py|parallel/distributed\.py",
    "triton": r".*/triton_\w+\.py",
    "dask": r"parallel/dask\w*\.py",
    "sklearn": r"classify/.*\.py",
    "transformers": r"integrate/.*\.py",
    "matplotlib": r"(cli|classify)/plot\w*\.py",
    "rich": r"cli/.*\.py",
    "typer": r"cli/.*\.py",
    "jax": r"",
    "scipy": r"classify/.*\.py",
    "pyarrow": r"",
    "skops": r"",
}
OPTIONAL = (*SERVES, "ml_dtypes", "click")


def name(path: Path) -> str:
    """A source file as the rules name it: its path inside the package."""
    return path.relative_to(SOURCE).as_posix()


def every(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=[p.relative_to(ROOT).as_posix() for p in paths])


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


# --- One definition of the state's recurrence ------------------------------------------------------------------

MAXIMUM = re.compile(r"m(_\w+|\d*)|\w+_m|(old|new|row|block|running)_?max(imum)?|max(imum)?_(old|new|\d)")
CPP_MAXIMUM = rf"[\w.>:-]*?\b(?:{MAXIMUM.pattern})"
CPP_RECURRENCE = re.compile(rf"\bexp\w*\s*\(\s*{CPP_MAXIMUM}\s*-\s*{CPP_MAXIMUM}\b")


def is_maximum(node: ast.expr) -> bool:
    last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return MAXIMUM.fullmatch(last) is not None


def is_recurrence(node: ast.AST) -> bool:
    """exp(m - m_new), whatever the namespace of exp and the names of the two maxima."""
    if not (isinstance(node, ast.Call) and len(node.args) >= 1):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    argument = node.args[0]
    return (
        re.fullmatch(r"exp(2|m1)?", called) is not None
        and isinstance(argument, ast.BinOp)
        and isinstance(argument.op, ast.Sub)
        and is_maximum(argument.left)
        and is_maximum(argument.right)
    )


def test_the_search_for_the_recurrence_finds_it() -> None:
    found = ["xp.exp(m1 - m)", "exp(self.m - m_new)", "np.exp2(a.m - running_max)"]
    passed = ["xp.exp(z - m)", "xp.exp(m)", "exp(m + m_new)", "xp.exp(log_p - log_q)"]
    assert all(is_recurrence(ast.parse(text, mode="eval").body) for text in found)
    assert not any(is_recurrence(ast.parse(text, mode="eval").body) for text in passed)
    assert CPP_RECURRENCE.search("l *= exp16(a.m - m_new);")
    assert CPP_RECURRENCE.search("std::exp(state->m1 - m)")
    assert not CPP_RECURRENCE.search("std::exp(z[i] - m)")


@every([p for p in PYTHON if name(p) not in STATE_FILES])
def test_recurrence_stands_only_in_the_state_files(path: Path) -> None:
    lines = [node.lineno for node in ast.walk(tree(path)) if is_recurrence(node)]
    assert not lines, f"{name(path)}:{lines}: merge states with core's State; do not write exp(m - m_new) again"


@every([p for p in NATIVE if name(p) not in STATE_FILES])
def test_recurrence_stands_only_in_the_native_state_file(path: Path) -> None:
    code = [line.split("//")[0] for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [number for number, line in enumerate(code, 1) if CPP_RECURRENCE.search(line)]
    assert not lines, f"{name(path)}:{lines}: merge states with core/native/state.hpp"


# --- Imports ------------------------------------------------------------------------------------------------------


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(path: Path, *, top_level: bool) -> list[tuple[int, str, list[str]]]:
    """(line, module, names) of every import; only those that run at import time if `top_level`."""
    package = ["softargmax", *path.relative_to(SOURCE).parent.parts]
    found: list[tuple[int, str, list[str]]] = []
    pending: list[ast.AST] = [tree(path)]
    while pending:
        node = pending.pop()
        if top_level and (is_type_checking(node) or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found.append((node.lineno, module, [alias.name for alias in node.names]))
        pending += ast.iter_child_nodes(node)
    return found


@every(PYTHON)
def test_frameworks_are_imported_only_where_they_are_served(path: Path) -> None:
    wrong = [
        f"line {line}: {module}"
        for line, module, _ in imports(path, top_level=True)
        if (framework := module.split(".")[0]) in SERVES and not re.fullmatch(SERVES[framework], name(path))
    ]
    assert not wrong, f"{name(path)} imports an optional framework at its top: {wrong}"


ROOMS = sorted(p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists())


def inside(path: Path, module: str, names: list[str]) -> str | None:
    """Name what `path` reaches inside another room, or None. Core is everyone's; a room's public names are too."""
    room = path.relative_to(SOURCE).parts[0]
    parts = module.split(".")
    if parts[0] != "softargmax" or room not in ROOMS:  # softargmax/__init__.py and nn.py stand above the rooms
        return None
    if len(parts) > 1:
        other, deeper = parts[1], parts[2:]
    else:  # from softargmax import x: a room, or a public name
        other, deeper = next((n for n in names if n in ROOMS), room), []
    if other in (room, "core") or other not in ROOMS:
        return None
    if room == "core":
        return f"{module} (core serves rooms, it does not know them)"
    files = {p.stem for p in (SOURCE / other).iterdir()} - {"__init__"}
    public = set(getattr(__import__(f"softargmax.{other}", fromlist=["__all__"]), "__all__", ()))
    reached = deeper or [n for n in names if n not in public and (n in files or n.startswith("_"))]
    return f"{module}: {', '.join(reached)}" if reached else None


@every(PYTHON)
def test_rooms_do_not_reach_inside_each_other(path: Path) -> None:
    wrong = [
        f"line {line}: {reach}"
        for line, module, names in imports(path, top_level=False)
        if (reach := inside(path, module, names))
    ]
    assert not wrong, f"{name(path)} reaches inside another room: {wrong}"


@every([p for p in NATIVE if name(p) != "core/native/module.cpp"])
def test_native_rooms_do_not_include_each_other(path: Path) -> None:
    included = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
    room = path.relative_to(SOURCE).parts[0]
    wrong = [header for header in included if (other := header.split("/")[0]) in ROOMS and other not in (room, "core")]
    assert not wrong, f"{name(path)} includes another room's {wrong}"


IMPORT_SCRIPT = f"""
import sys, time
import numpy
began = time.perf_counter()
import softargmax
print(time.perf_counter() - began)
print(*[name for name in {OPTIONAL!r} if name in sys.modules])
"""


def test_import_is_quick_and_brings_no_framework() -> None:
    seconds = []
    for _ in range(3):  # the quickest of three: the first may be compiling or fighting for a core
        out = subprocess.run([sys.executable, "-c", IMPORT_SCRIPT], check=True, capture_output=True, text=True).stdout
        elapsed, loaded = out.split("\n")[:2]
        assert loaded == "", f"`import softargmax` imported {loaded}"
        seconds.append(float(elapsed))
    assert min(seconds) < 0.2, f"importing softargmax takes {min(seconds):.3f} s more than numpy"


# --- What a public name owes ----------------------------------------------------------------------------------------

PUBLIC = sorted(n for n in softargmax.__all__ if not n.startswith("_"))


@pytest.mark.parametrize("public", PUBLIC)
def test_public_names_have_docstrings_with_examples(public: str) -> None:
    value = getattr(softargmax, public)
    if not callable(value):
        return
    doc = value.__doc__ or ""
    assert re.search(r"^\s*Examples\n\s*-{8}", doc, re.MULTILINE), f"softargmax.{public}: no Examples section"
    assert ">>> " in doc, f"softargmax.{public}: the Examples section has no example"


@pytest.mark.parametrize("public", PUBLIC)
def test_public_names_are_listed_by_their_room(public: str) -> None:
    module = getattr(getattr(softargmax, public), "__module__", "softargmax") or "softargmax"
    parts = module.split(".")
    if len(parts) < 2 or parts[1] not in ROOMS or parts[1] == "core":  # core is no family; the table lists its names
        return
    room = __import__(f"softargmax.{parts[1]}", fromlist=["__all__"])
    assert public in room.__all__, f"{public} is public but softargmax.{parts[1]}.__all__ does not list it"
    assert public in dir(softargmax), f"{public} is public but dir(softargmax) does not show it"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_say_what_they_are(room: str) -> None:
    module = tree(SOURCE / room / "__init__.py")
    assert (ast.get_docstring(module) or "").strip(), f"softargmax/{room}/__init__.py does not say what the room is"


# --- Tidiness -------------------------------------------------------------------------------------------------------


@every(PYTHON)
def test_no_assert_statements(path: Path) -> None:
    lines = [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Assert)]
    assert not lines, f"{name(path)}:{lines}: user errors are exceptions with sentences, not asserts"


@every(TEXTS)
def test_every_todo_has_an_owner(path: Path) -> None:
    words = "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX"))  # in halves: this file is searched too
    wrong = re.findall(rf"(?:#|//).*\b(?:{words})\b(?!\(\w+\))", path.read_text(encoding="utf-8"))
    assert not wrong, wrong


@every(TEXTS)
def test_files_are_short_enough_to_read(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 300, f"{path.relative_to(ROOT)} has {lines} lines"


def test_stub_and_type_marker_are_installed() -> None:
    assert (resources.files("softargmax") / "py.typed").is_file()
    spec = util.find_spec("softargmax._native")
    assert spec is not None
    assert spec.origin is not None
    stub = Path(spec.origin).parent / "_native.pyi"
    assert stub.is_file(), f"no stub beside {spec.origin}"
    assert "def " in stub.read_text(encoding="utf-8")


def test_every_dependency_has_its_version_recorded() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    asked = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    asked += [d for group in [*extras, *project["dependency-groups"].values()] for d in group if isinstance(d, str)]
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    pinned = {re.sub(r"[-_.]+", "-", pin).lower() for pin in pins}
    names = {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", d, maxsplit=1)[0]).lower() for d in asked} - {"softargmax"}
    assert names <= pinned, f"not in constraints.txt: {sorted(names - pinned)}"
