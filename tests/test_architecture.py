"""The source follows the project's rules for imports, the merge of states, public names and tidiness."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
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
TEXTS = [*PYTHON, *NATIVE, *(path for of in ("tests", "bench", "tools") for path in sorted((ROOT / of).rglob("*.py")))]

# The only files in which states are merged: one per language.
STATE_FILES = {"core/state.py", "core/cpp/state.hpp", "core/triton_state.py"}

# For each framework, the files that may import it at their top. Frameworks without such files may only be imported
# inside functions.
SERVES = {
    "torch": r"(.*/)?(torch_\w+|triton_\w+|modules|nn)\.py|integrate/.*\.py",
    "triton": r"(.*/)?triton_\w+\.py",
    "transformers": r"integrate/.*\.py",
    "jax": r"(core/jax_\w+|jax)\.py",
    "sklearn": r"classify/.*\.py",
    "scipy": r"classify/.*\.py",
    "matplotlib": r"(cli|classify)/plot\w*\.py",
    "rich": r"cli/.*\.py",
    "typer": r"cli/.*\.py",
    "dask": r"(parallel|classify|cli)/dask_\w+\.py",
    **dict.fromkeys(("pyarrow", "skops"), ""),
}
OPTIONAL = (*SERVES, "ml_dtypes", "click")


def name(path: Path) -> str:
    """Return the path of a source file inside the package. The rules below name files by this path."""
    return path.relative_to(SOURCE).as_posix()


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def every(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=[p.relative_to(ROOT).as_posix() for p in paths])


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


# --- One definition of the state's recurrence ------------------------------------------------------------------

MAXIMUM = re.compile(r"m(_\w+|\d*)|\w+_m|(old|new|row|block|running)_?max(imum)?|max(imum)?_(old|new|\d)")


def is_maximum(node: ast.expr) -> bool:
    last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return MAXIMUM.fullmatch(last) is not None


def is_recurrence(node: ast.AST) -> bool:
    """True if a call has the form exp(m - m_new), with any namespace of exp and with two names that MAXIMUM matches."""
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


@every([p for p in PYTHON if name(p) not in STATE_FILES])
def test_only_the_state_file_contains_the_recurrence(path: Path) -> None:
    lines = [node.lineno for node in ast.walk(tree(path)) if is_recurrence(node)]
    assert not lines, f"{name(path)}:{lines}: merge states with core's State; do not write exp(m - m_new) again"


def test_merge_is_defined_once_in_python() -> None:
    functions = [(name(p), f) for p in PYTHON for f in ast.walk(tree(p)) if isinstance(f, ast.FunctionDef)]
    merging = {file for file, function in functions if function.name.strip("_") in ("merge", "merged")}
    assert merging == {"core/state.py", "core/triton_state.py"}


# In C++, code that merges states is recognised by the weights that it computes. A weight is an exponential or a power
# of two. Its exponent is the difference of two maxima or of two lse. The difference can be written in the call, or
# assigned to a variable before.
LEVEL = r"(?:\w+(?:\.|->|\[\w+\]\.?))*(?:m\d*|k|part|whole|own|(?:\w+_)?(?:m|top|lse|max|maximum)(?:_\w+)?)\b\}?"
DIFFERENCE = re.compile(
    rf"(?<![\w.]){LEVEL}\s*-\s*(?:[\w:]+\{{)?{LEVEL}(?!\s*[*/(])|two_sum\(\s*{LEVEL}\s*,\s*-\s*{LEVEL}"
)
EXPONENTIAL = re.compile(r"\b(?:exp\w*|power\w*|ldexp|scalbn)\s*(?:<\w*>)?\s*\(")
MERGE = re.compile(r"\bmerge\s*\((?:[^()]|\([^()]*\))*\)\s*(?:const\s*)?\{")


def argument(code: str, start: int) -> str:
    """Return the arguments of a call: the text from `start`, just after a parenthesis, to the closing parenthesis."""
    depth, end = 1, start
    while depth and end < len(code):
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        end += 1
    return code[start : end - 1]


def weights(text: str) -> list[str]:
    """Return the calls in C++ code that compute the weight of a merge, with their line numbers."""
    code = re.sub(r"//[^\n]*", "", text)
    found = []
    for call in EXPONENTIAL.finditer(code):
        formula, seen = argument(code, call.end()), set[str]()
        before = code[: call.start()].rpartition("\n}")[2]
        for _ in range(3):  # look up the definitions of variables three levels deep
            for variable in set(re.findall(r"\b[a-zA-Z_]\w*", formula)) - seen:
                seen.add(variable)
                assigned = re.findall(rf"\b{variable}\s*[={{]\s*([^;=]*[^;=,])(?:;|,\s*\w+\s*=)", before)
                formula += f"; {assigned[-1]}" if assigned else ""
        if DIFFERENCE.search(formula):
            found.append(f"line {code.count(chr(10), 0, call.start()) + 1}: {call[0]}{argument(code, call.end())})")
    return found


def test_the_search_for_native_weights_finds_them() -> None:
    found = [
        "l *= exp16(a.m - m_new);",
        "std::exp(state->m1 - m)",
        "inverse *= exp_scalar(lse - whole);",
        "const std::int64_t d = std::int64_t{block.k} - to.k; const T weight = power<T>(-d);",
        "const Twofold d = two_sum(b.m, -a.m), x = times(d.hi, beta); w = exp_scalar(x.hi);",
        "const double gap = rows[i].top - top; std::ldexp(1.0, gap)",
    ]
    passed = ["std::exp(z[i] - m)", "power_of_two(magic + (k - half))", "exp_scalar(-37 * a_)", "log(a.m - b.m)"]
    assert [text for text in found if not weights(text)] == []
    assert [text for text in passed if weights(text)] == []


@every([p for p in NATIVE if name(p) not in STATE_FILES])
def test_states_are_weighed_only_in_the_native_state_file(path: Path) -> None:
    found = weights(path.read_text(encoding="utf-8"))
    assert not found, f"{name(path)}, {found}: merge states with core/cpp/state.hpp"


def test_merge_is_defined_once_in_native_code() -> None:
    found = [name(p) for p in NATIVE for _ in MERGE.findall(p.read_text(encoding="utf-8"))]
    assert found == ["core/cpp/state.hpp"]


# --- Native namespaces --------------------------------------------------------------------------------------------


@every(NATIVE)
def test_native_files_open_only_the_namespaces_of_their_room(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0]
    own = {"", f"softargmax::{room}", f"softargmax::SOFTARGMAX_ISA_NAME::{room}"}
    if room == "core":  # core has code shared by rooms, and macros that name a room
        own |= {"softargmax", "softargmax::SOFTARGMAX_ISA_NAME", "softargmax::room", "softargmax::isa::room"}
        own |= {"softargmax::SOFTARGMAX_ISA_NAME::room"}
    opened = re.findall(
        r"^\s*(?:inline\s+)?namespace\b\s*([\w:]*)[^;=]*?\{", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert opened, f"{name(path)} opens no namespace"
    assert set(opened) <= own, f"{name(path)} opens {sorted(set(opened) - own)}"


@every(NATIVE)
def test_native_files_use_no_macro_that_reads_objects(path: Path) -> None:
    """The wheel for Python 3.12 and later uses the stable ABI, which hides the fields of Python's objects.

    Names that begin with PyBUF_ are numbers.
    """
    found = re.findall(r"\b_?Py(?!BUF_)[A-Za-z]+_[A-Z]+(?:_[A-Z]+)*\b", path.read_text(encoding="utf-8"))
    assert not found, f"{found}: use a function of the stable ABI, or a macro of nanobind, such as NB_TUPLE_GET_SIZE"


@every([p for p in NATIVE if name(p).startswith("core/")])
def test_native_core_names_no_room(path: Path) -> None:
    rooms = "|".join(room for room in ROOMS if room != "core")
    named = re.findall(rf'\b(?:{rooms})::|::(?:{rooms})\b|"(?:{rooms})/|\bbind_(?:{rooms})\b', path.read_text("utf-8"))
    assert not named, f"{name(path)} names a room: {named}"


# --- Imports ------------------------------------------------------------------------------------------------------


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(path: Path, *, top_level: bool) -> list[tuple[int, str, list[str]]]:
    """Return (line, module, names) of every import. With `top_level`, return only imports that run at import time."""
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
def test_only_files_that_serve_a_framework_import_it(path: Path) -> None:
    wrong = [
        f"line {line}: {module}"
        for line, module, _ in imports(path, top_level=True)
        if (framework := module.split(".")[0]) in SERVES and not re.fullmatch(SERVES[framework], name(path))
    ]
    assert not wrong, f"{name(path)} imports an optional framework at its top: {wrong}"


ROOMS = sorted(p.name for p in SOURCE.iterdir() if (p / "__init__.py").exists())
MODULES = {module_of(path): path for path in PYTHON}
TABLES_OF_NAMES = {"__init__.py", "nn.py"}  # these list the file of each public name

# Imports point down: from the command to other modules of the package, to rooms, to core.
LEVELS = {"core": 0, **dict.fromkeys({*ROOMS} - {"core", "cli"}, 1), "cli": 3}


def level(part: str) -> int:
    return LEVELS.get(part, 2)


# Files that still break a rule. The lists may only shrink. A file that follows the rule must be removed from its list.
IMPORT_THE_TOP_PACKAGE: set[str] = set()
REACH_INSIDE_A_ROOM: set[str] = set()


def only_shrinks(path: Path, wrong: list[str], listed: set[str], complaint: str) -> None:
    if name(path) in listed:
        assert wrong, f"{name(path)} now follows the rule: remove it from the list"
    else:
        assert not wrong, f"{name(path)} {complaint}: {wrong}"


def test_the_lists_name_existing_files() -> None:
    gone = (IMPORT_THE_TOP_PACKAGE | REACH_INSIDE_A_ROOM) - {name(path) for path in PYTHON}
    assert not gone, f"these files no longer exist, remove them from the lists: {sorted(gone)}"


@every([p for p in PYTHON if not name(p).startswith("cli/")])  # the command uses the package like a user
def test_only_the_command_imports_the_top_package(path: Path) -> None:
    found = imports(path, top_level=False)
    wrong = [f"line {line}: {', '.join(names)}" for line, module, names in found if module == "softargmax"]
    only_shrinks(path, wrong, IMPORT_THE_TOP_PACKAGE, "imports the top package")


def public_names(module: str) -> set[str]:
    """Return the public names of a room that stand for the same objects in `module`, a file of the room."""
    found = importlib.import_module(module)
    room = importlib.import_module(".".join(module.split(".")[:2]))
    return {n for n in room.__all__ if getattr(found, n, None) is getattr(room, n)}


def reached(path: Path) -> list[str]:
    """Return the forbidden imports of a file: from a higher level, or of another room's private names.

    The operations of another room may be imported.
    """
    mine = name(path).removesuffix(".py").split("/")[0]
    wrong = []
    for line, module, names in imports(path, top_level=False):
        package, other, file = [*module.split("."), "", ""][:3]
        if package != "softargmax" or other in (mine, "core", ""):
            continue
        records = file == "operations" or names == ["operations"]
        allowed = other not in ROOMS or records or (names and {*names} <= public_names(module))
        if level(other) > level(mine) or not allowed:
            wrong.append(f"line {line}: {module}: {', '.join(names)}")
    return wrong


@every([p for p in PYTHON if name(p) not in TABLES_OF_NAMES])
def test_imports_point_down_and_use_no_private_names_of_rooms(path: Path) -> None:
    message = "imports from a higher level, or imports private names of another room"
    only_shrinks(path, reached(path), REACH_INSIDE_A_ROOM, message)


@pytest.mark.parametrize(
    "room", [room for room in ROOMS if room != "core" and (SOURCE / room / "kernels.cpp").exists()]
)
def test_kernels_are_served_by_records(room: str) -> None:
    """Only the operations call kernels. A room has no native.py, which would list the kernels' arguments once more."""
    own = (SOURCE / room / "native.py").exists()
    served = (SOURCE / room / "operations.py").exists() and not own
    assert served, f"{room}: its kernels belong to the operations in operations.py, not to native.py"


RECORDS = sorted(path for path in PYTHON if path.name.endswith("operations.py"))


@every(RECORDS)
def test_every_record_has_a_definition_and_uses_its_arguments(path: Path) -> None:
    from softargmax.core.operation import Operation
    from softargmax.core.record import Branch, parameters

    module = importlib.import_module(module_of(path))
    mine = [operation for operation in vars(module).values() if isinstance(operation, Operation)]
    assert mine, f"{name(path)} defines no operation"
    for operation in mine:
        named = {*parameters(operation.definition)}
        leaves = {leaf.name for leaf in operation.leaves}
        named = leaves if "i" in named else named
        assert named <= leaves | {one.name for one in operation.tree.parts}, (
            f"{operation.name}: unknown parameters of its definition: {named - leaves}"
        )
        for one in operation.tree.parts:
            named |= {leaf.name for leaf in one.leaves} if isinstance(one, Branch) and one.name in named else set()
        for kernel in operation.kernels.values():
            named |= leaves if not callable(kernel) or "i" in parameters(kernel) else {*parameters(kernel)}
        assert leaves <= named | {"dtype"}, f"{operation.name} does not use its arguments {leaves - named}"


@pytest.mark.parametrize("depth", [2, None], ids=["rooms", "modules"])
def test_imports_are_not_circular(depth: int | None) -> None:
    arrows: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        start = ".".join(module.split(".")[:depth])
        for _, source, names in imports(path, top_level=False):
            if source.startswith("softargmax."):
                ends = {f"{source}.{n}" if f"{source}.{n}" in MODULES else source for n in names or [""]}
                arrows.setdefault(start, set()).update({".".join(end.split(".")[:depth]) for end in ends} - {start})
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        pytest.fail("each is imported by the next one: " + ", ".join(error.args[1]))


@every([p for p in NATIVE if name(p) != "core/cpp/module.cpp"])
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


def test_import_is_quick_and_loads_no_framework() -> None:
    seconds = []
    for _ in range(3):  # three runs, because one may compile bytecode or wait for a core
        out = subprocess.run([sys.executable, "-c", IMPORT_SCRIPT], check=True, capture_output=True, text=True).stdout
        elapsed, loaded = out.split("\n")[:2]
        assert loaded == "", f"`import softargmax` imported {loaded}"
        seconds.append(float(elapsed))
    assert min(seconds) < 0.2, f"importing softargmax takes {min(seconds):.3f} s more than numpy"


# --- Requirements on public names -----------------------------------------------------------------------------------

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
    if len(parts) < 2 or parts[1] not in ROOMS or parts[1] == "core":  # the top package lists core's names
        return
    room = __import__(f"softargmax.{parts[1]}", fromlist=["__all__"])
    assert public in room.__all__, f"{public} is public but softargmax.{parts[1]}.__all__ does not list it"
    assert public in dir(softargmax), f"{public} is public but dir(softargmax) does not show it"


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_a_docstring(room: str) -> None:
    module = tree(SOURCE / room / "__init__.py")
    assert (ast.get_docstring(module) or "").strip(), f"softargmax/{room}/__init__.py has no docstring"


# --- Tidiness -------------------------------------------------------------------------------------------------------


@every(PYTHON)
def test_no_assert_statements(path: Path) -> None:
    lines = [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Assert)]
    assert not lines, f"{name(path)}:{lines}: raise an exception with a sentence in place of assert"


@every(TEXTS)
def test_every_todo_has_an_owner(path: Path) -> None:
    words = "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX"))  # split, because this file is searched, too
    wrong = re.findall(rf"(?:#|//).*\b(?:{words})\b(?!\(\w+\))", path.read_text(encoding="utf-8"))
    assert not wrong, wrong


@every(TEXTS)
def test_files_are_short_enough_to_read(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 500, f"{path.relative_to(ROOT)} has {lines} lines"


def test_stub_and_type_marker_are_installed() -> None:
    assert (resources.files("softargmax") / "py.typed").is_file()
    spec = util.find_spec("softargmax.core._native")
    assert spec is not None
    assert spec.origin is not None
    stub = Path(spec.origin).parent / "_native.pyi"
    assert stub.is_file(), f"no stub beside {spec.origin}"
    assert "def " in stub.read_text(encoding="utf-8")


def test_every_dependency_has_its_version_recorded() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    required = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    required += [d for group in [*extras, *project["dependency-groups"].values()] for d in group if isinstance(d, str)]
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    pinned = {re.sub(r"[-_.]+", "-", pin).lower() for pin in pins}
    names = {re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", d, maxsplit=1)[0]).lower() for d in required} - {"softargmax"}
    assert names <= pinned, f"not in constraints.txt: {sorted(names - pinned)}"
