"""Generate the list of public names and the type stubs, so that no name or signature is written by hand twice.

    python tools/stubs.py            write
    python tools/stubs.py --check    exit with 1 if a file and the rooms differ

A room is a folder of src/softargmax. The `__all__` and the signatures of the rooms determine two files.
src/softargmax/_names.py has the module of each public name. src/softargmax/__init__.pyi has the signatures, one for
each kind of array, so that the type of the arguments determines the type of the result. Two further files,
src/softargmax/nn.pyi and src/softargmax/parallel/__init__.pyi, have the names of these modules.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "softargmax"
ROOMS = ("attend", "loss", "normalize", "sample", "sparse", "structure")
CORE = {
    "softargmax.core.dispatch": ("using",),
    "softargmax.core.native": ("get_num_threads", "set_num_threads"),
    "softargmax.core.state": ("State",),
}
MODULES = ("classify", "integrate", "jax", "nn", "output", "parallel", "stream")
WRITTEN = "Written by tools/stubs.py from the rooms."
WIDTH = 120

HEAD = f'''"""{WRITTEN} Docstrings are in the rooms.

For NumPy arrays, lists and numbers, results are NumPy arrays. For tensors they are tensors. For other arrays of the
array-API standard (such as those of JAX) and for Dask arrays they are arrays of the same type. A function that reduces
a single row to one number returns a NumPy scalar in place of a NumPy array.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, overload

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

{{imports}}

__version__: str
__all__ = [
{{names}}
]

class _ArrayAPI(Protocol):  # NumPy arrays do not match: their method accepts only some strings as `api_version`
    def __array_namespace__(self, *, api_version: str | None = None) -> Any: ...

class _Dask(Protocol):
    def compute_chunk_sizes(self) -> Any: ...

A = TypeVar("A")
_X = TypeVar("_X", bound=_ArrayAPI | _Dask)

# Lists with up to four axes. A recursive alias would accept strings, too.
_Real: TypeAlias = float | np.number[Any] | np.bool_
_Bool: TypeAlias = bool | np.bool_
_Int: TypeAlias = int | np.integer[Any]
_Row: TypeAlias = Sequence[_Real | NDArray[Any]]
_Reals: TypeAlias = _Real | _Row | Sequence[_Row] | Sequence[Sequence[_Row]] | Sequence[Sequence[Sequence[_Row]]]
_Bools: TypeAlias = _Bool | Sequence[_Bool] | Sequence[Sequence[_Bool]] | Sequence[Sequence[Sequence[_Bool]]]
_Ints: TypeAlias = _Int | Sequence[_Int] | Sequence[Sequence[_Int]] | Sequence[Sequence[Sequence[_Int]]]
_ArrayLike: TypeAlias = NDArray[Any] | _Reals | complex | Sequence[complex]

# Arguments in addition to an array of type A: an array of the same type, or values that can be converted to it.
_PerRow: TypeAlias = A | NDArray[Any] | _Reals
_Numbers: TypeAlias = A | NDArray[Any] | _Reals
_Target: TypeAlias = A | NDArray[Any] | _Reals
_Integers: TypeAlias = A | NDArray[np.integer[Any]] | _Ints
_Mask: TypeAlias = A | NDArray[np.bool_] | _Bools
_Seed: TypeAlias = int | _ArrayAPI  # or a key of jax.random
_Generator: TypeAlias = np.random.Generator | np.random.RandomState | torch.Generator
'''

PARALLEL = f'''"""{WRITTEN} Docstrings are in the room."""

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from softargmax import {{types}}
{{imports}}

__all__ = [
{{names}}
]
'''

ENTROPY_INVARIANT_SCALE = '''@overload
def entropy_invariant_scale(n: int, d: int, /, kappa: float = 1.0) -> float:  # type: ignore[overload-overlap]
    """{doc}"""
@overload
def entropy_invariant_scale(
    n: _Integers[NDArray[Any]], d: int, /, kappa: _Numbers[NDArray[Any]] = 1.0,
) -> NDArray[Any]: ...
@overload
def entropy_invariant_scale(n: Tensor, d: int, /, kappa: _Numbers[Tensor] = 1.0) -> Tensor: ...
@overload
def entropy_invariant_scale(n: _Integers[Tensor], d: int, /, kappa: Tensor) -> Tensor: ...
@overload
def entropy_invariant_scale(n: _X, d: int, /, kappa: _Numbers[_X] = 1.0) -> _X: ...
@overload
def entropy_invariant_scale(n: _Integers[_X], d: int, /, kappa: _X) -> _X: ...'''
"""The overloads of entropy_invariant_scale. Two numbers give a number. An array argument gives an array of its kind."""


class Kind(NamedTuple):
    """A kind of array: the type of results, the type of arguments, and the type of dtypes."""

    array: str
    given: str
    dtype: str


NUMPY = Kind("NDArray[Any]", "_ArrayLike", "DTypeLike")
TORCH = Kind("Tensor", "Tensor", "torch.dtype | str")
KINDS = (NUMPY, TORCH, Kind("_X", "_X", "object"))
OF_A = Kind("A", "_Numbers[A]", "object")
"""The kind of the arrays in a class that is generic in the array type A."""
OTHER_ARGUMENTS = ("PerRow", "Mask", "Target", "Numbers", "Integers")


def homes() -> dict[str, str]:
    """Return the module of each public name."""
    of_rooms = {f"softargmax.{room}": importlib.import_module(f"softargmax.{room}").__all__ for room in ROOMS}
    return dict(sorted((name, home) for home, names in {**of_rooms, **CORE}.items() for name in names))


def shown(name: str, public: dict[str, Any]) -> str:
    """Return the name of a class in the stub. Names that are not public begin with an underscore."""
    return name if name in public else f"_{name}"


def spelled(annotation: Any, kind: Kind, results: dict[str, str]) -> str:
    """Translate an annotation, which uses the names of core/types.py, into the types of one kind of array.

    `results` maps the names of the result classes to their names in the stub.
    """
    words = {
        "Array": kind.array,
        **dict.fromkeys(("Logits", "Vectors", "Like"), kind.given),
        "DType": kind.dtype,
        "Seed": "_Seed",
        "Generator": "_Generator",
        "Iterator": "AbstractContextManager",
        **{name: f"_{name}[{kind.array}]" for name in OTHER_ARGUMENTS},
        **{name: f"{stub}[{kind.array}]" for name, stub in results.items()},
    }
    text = "None" if annotation is None else re.sub(r"\btypes\.", "", str(annotation))
    found = re.sub(r"\w+", lambda word: words.get(word[0], word[0]), text)
    if re.search(r"\bAny\b", text):
        raise TypeError(f"{annotation}: expected a name of core/types.py in place of Any")
    return found


def declared(name: str, function: Any, kind: Kind, results: dict[str, str], doc: str = "") -> list[str]:
    """Return the declaration of a function for one kind of array."""
    signature, given, before = inspect.signature(function), [], None
    for x in signature.parameters.values():
        if before is x.POSITIONAL_ONLY and x.kind is not x.POSITIONAL_ONLY:
            given.append("/")
        if x.kind is x.KEYWORD_ONLY and before not in (x.KEYWORD_ONLY, x.VAR_POSITIONAL):
            given.append("*")
        before = x.kind
        star = "*" if x.kind is x.VAR_POSITIONAL else ""
        hint, default = x.annotation, "" if x.default is x.empty else f" = {literal(x.default)}"
        if str(hint).startswith("Like") and kind not in (NUMPY, OF_A):  # required: `like` alone gives the result type
            hint, default = "Like", ""
            given += ["*"] * ("*" not in given)
        given.append(star + x.name + ("" if hint is x.empty else f": {spelled(hint, kind, results)}{default}"))
    if before is inspect.Parameter.POSITIONAL_ONLY:
        given.append("/")
    tail = f") -> {spelled(signature.return_annotation, kind, results)}:" + ("" if doc else " ...")
    return laid_out(f"def {name}(", given, tail) + documented(doc)


def laid_out(head: str, given: list[str], tail: str) -> list[str]:
    """Return a declaration on one line or, if it is too long, with its arguments on separate lines."""
    if len(one := head + ", ".join(given) + tail) <= WIDTH - 4:
        return [one]
    lines = ["   "]
    for word in given:
        if len(lines[-1]) + len(word) + 2 > WIDTH - 4:
            lines.append("   ")
        lines[-1] += f" {word},"
    return [head, *lines, tail]


def literal(default: Any) -> str:
    """Return the source text of a default value."""
    return f'"{default}"' if isinstance(default, str) else repr(default)


def documented(doc: str) -> list[str]:
    """Return the lines of a docstring, or no lines for an empty text."""
    return wrap(f'"""{doc}"""', WIDTH - 4, initial_indent="    ", subsequent_indent="    ") if doc else []


def summary(thing: Any) -> str:
    """Return the first paragraph of the docstring as one line."""
    first = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    return " ".join(first.split()).replace("\\", "\\\\")


def overloads(name: str, function: Any, results: dict[str, str], *, method: bool = False) -> list[str]:
    """Return the declarations of a function: one for each kind of array, or only one if the function takes no array."""
    decorators = ["@classmethod"] if method else []
    hints = " ".join(str(x.annotation) for x in inspect.signature(function).parameters.values())
    if not re.search(r"\b(Logits|Vectors|Like)\b", hints):
        return [*decorators, *declared(name, function, NUMPY, results, summary(function))]
    lines = []
    for kind in KINDS:
        doc = summary(function) if kind is NUMPY else ""
        lines += ["@overload", *decorators, *declared(name, function, kind, results, doc)]
    return lines


def of_class(result: Any, results: dict[str, str]) -> list[str]:
    """Return the declaration of a class of arrays, which may be a named tuple."""
    fields = getattr(result, "_fields", ())
    bases = "NamedTuple, Generic[A]" if fields else "Generic[A]"
    lines = [f"class {results[result.__name__]}({bases}):", *documented(summary(result)), ""]
    for field in fields:
        default = f" = {literal(result._field_defaults[field])}" if field in result._field_defaults else ""
        hint = result.__annotations__[field].__forward_arg__
        ignored = "  # type: ignore[assignment]" if hasattr(tuple, field) else ""
        lines.append(f"    {field}: {spelled(hint, OF_A, results)}{default}{ignored}")
    for name, method in vars(result).items():
        if isinstance(method, property) and not name.startswith("_"):
            getter = declared(name, method.fget, OF_A, results, summary(method))
            lines += ["    @property", *(f"    {line}" for line in getter)]
        elif isinstance(method, classmethod) and not name.startswith("_"):
            lines += [f"    {line}" for line in overloads(name, method.__func__, results, method=True)]
        elif inspect.isfunction(method) and not name.startswith("_") and name not in dir(tuple):
            lines += [f"    {line}" for line in declared(name, method, OF_A, results, summary(method))]
    return lines


def classes_of(public: dict[str, Any]) -> dict[str, type]:
    """Return the public classes, and the named tuples that public functions and methods return."""
    classes = {name: value for name, value in public.items() if isinstance(value, type)}
    for value in public.values():
        methods = vars(value).items() if isinstance(value, type) else ()
        for one in (value, *(method for name, method in methods if not name.startswith("_"))):
            back = getattr(inspect.unwrap(one), "__annotations__", {}).get("return") if callable(one) else None
            module = sys.modules.get(getattr(one, "__module__", ""))
            if isinstance(back, str) and hasattr(made := getattr(module, back, None), "_fields"):
                classes.setdefault(back, made)
    return classes


def stub(names: dict[str, str]) -> str:
    """Return the text of `__init__.pyi`."""
    public = {name: getattr(importlib.import_module(home), name) for name, home in names.items()}
    classes = classes_of(public)
    results = {name: shown(name, names) for name in classes}
    blocks = [of_class(value, results) for _, value in sorted(classes.items())]
    for name, function in public.items():
        if name == "entropy_invariant_scale":
            blocks.append(ENTROPY_INVARIANT_SCALE.format(doc=summary(function)).splitlines())
        elif name not in classes:
            blocks.append(overloads(name, function, results))
    head = HEAD.format(
        imports="\n".join(f"from softargmax import {name} as {name}" for name in MODULES),
        names="\n".join(f'    "{name}",' for name in ("__version__", *names)),
    )
    return head + "".join("\n" + "\n".join(block) + "\n" for block in blocks)


def table(names: dict[str, str]) -> str:
    """Return the text of `_names.py`."""
    rows = "\n".join(f'    "{name}": "{home}",' for name, home in names.items())
    return f'''"""The module of each public name. {WRITTEN}"""

HOME = {{
{rows}
}}
MODULES = {MODULES!r}
'''.replace("'", '"')


def nn_stub() -> str:
    """Return the text of `nn.pyi`."""
    nn = importlib.import_module("softargmax.nn")
    rows = [f"from {nn.HOME[name]} import {name} as {name}" for name in nn.__all__]
    return f'"""{WRITTEN}"""\n\n' + "\n".join(sorted(rows)) + "\n"


def parallel_stub(names: dict[str, str]) -> str:
    """Return the text of `parallel/__init__.pyi`.

    Functions of tensors take the options of functions of rooms. All other names are imported from their files.
    """
    room = importlib.import_module("softargmax.parallel")
    public = {name: getattr(room, name) for name in room.__all__}
    results = {name: shown(name, names) for name, value in classes_of(public).items() if hasattr(value, "_fields")}
    functions = {
        name: value
        for name, value in public.items()
        if room.HOME[name].startswith("torch_") and not isinstance(value, type)
    }
    imports = ["torch_functions import Group"]
    imports += [f"{room.HOME[name]} import {name} as {name}" for name in public.keys() - functions]
    blocks = [declared(name, value, TORCH, results, summary(value)) for name, value in functions.items()]
    text = "".join("\n" + "\n".join(block) + "\n" for block in blocks)
    types = sorted(set(re.findall(r"\b_[A-Z]\w+", text)) | {x for x in results.values() if f" {x}[" in text})
    head = PARALLEL.format(
        types=", ".join(types),
        imports="\n".join(f"from softargmax.parallel.{one}" for one in sorted(imports)),
        names="\n".join(f'    "{name}",' for name in public),
    )
    return head + text


def main() -> int:
    """Write the files, or compare them with the rooms if --check is given. Return the exit code."""
    names = homes()
    texts = {"_names.py": table(names), "__init__.pyi": stub(names), "nn.pyi": nn_stub()}
    texts["parallel/__init__.pyi"] = parallel_stub(names)
    files = {name: PACKAGE / name for name in texts}
    wrong = [name for name, file in files.items() if not file.exists() or file.read_text("utf-8") != texts[name]]
    if "--check" in sys.argv[1:]:
        for name in wrong:
            print(f"src/softargmax/{name} does not match the rooms: run `python tools/stubs.py`")
        return int(bool(wrong))
    for name in wrong:
        files[name].write_text(texts[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
