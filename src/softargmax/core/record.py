"""What the arguments and the results of an operation may be, and how they reach kernels (see operation.py)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from softargmax.core import _native
from softargmax.core.scale import Scale

if TYPE_CHECKING:
    from softargmax.core.memory import Memory

# --- what an argument may be ------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A type of argument: its slots in a torch schema, and how these and the argument are made of each other.

    `{0}`, `{1}`, .. stand for the argument (flatten, dense, native, arrays) or for its slots (unflatten).
    """

    slots: tuple[tuple[str, str], ...]
    flatten: str = "{0}"
    unflatten: str = "{0}"
    dense: str = ""
    """What makes a copy that kernels can read; it has to outlive the call."""
    native: str = "{0}"
    """What kernels are given; where they take arrays as they are (`Memory.direct`), the argument itself."""
    arrays: tuple[str, ...] = ()
    """The arrays in it."""
    number: str = ""
    """Whether it is a number and holds no array."""


ARRAY = Kind((("", "Tensor"),), native="_view({0})", arrays=("{0}",))
DENSE = ARRAY._replace(dense="_dense({0})")
PACKED = ARRAY._replace(dense="_packed({0})")
BARE = ARRAY._replace(native="_numpy({0})")
INTEGERS = ARRAY._replace(dense="_integers({0})")
ROWWISE = Kind(
    (("", "Tensor?"), ("_number", "float?")),
    flatten="*((None, {0}) if {0} is None or type({0}) is float else ({0}, None))",
    unflatten="({1} if {0} is None else {0})",
    native="({0} if type({0}) is float else _view({0}))",
    arrays=("{0}",),
    number="type({0}) is float",
)
BETA = Kind(
    (("_hi", "Tensor?"), ("_lo", "Tensor?"), ("_number", "float"), ("_rest", "float")),
    flatten="*((None, None, *{0}) if type({0}[0]) is float else (*{0}, 1.0, 0.0))",
    unflatten="(_Scale({2}, {3}) if {0} is None else _Scale({0}, {1}))",
    native="({0} if type({0}[0]) is float else (_view({0}[0]), _view({0}[1])))",
    arrays=("{0}[0]", "{0}[1]"),
    number="type({0}[0]) is float",
)
SEED = Kind((("", "Tensor"),), native="({0} if type({0}) is int else _view({0}))", arrays=("{0}",))
DTYPE = Kind((("", "ScalarType"),))
AXES = Kind((("", "int[]"),), unflatten="tuple({0} or ())")  # () of what has none: where vmap maps an argument
LEADING = Kind((("", "int"),))
NUMBERS = {kind: Kind((("", kind.__name__),)) for kind in (float, int, bool, str)}

Array = Annotated[Any, ARRAY]
"""An array with any strides."""
Dense = Annotated[Any, DENSE]
"""An array that kernels get contiguous, in float64."""
Packed = Annotated[Any, PACKED]
"""An array that kernels get contiguous."""
Bare = Annotated[Any, BARE]
"""An array that kernels get as NumPy's, of any dtype."""
Integers = Annotated[Any, INTEGERS]
"""Integers that kernels get contiguous, in int64."""
Rowwise = Annotated[Any, ROWWISE]
"""A float for all rows, or an array with one per row: float64 where the library has it, or int64 for a count."""
Beta = Annotated[Scale, BETA]
"""beta = hi + lo: two floats, or two such arrays. Gradients go to hi."""
Seed = Annotated[Any, SEED]
"""64 random bits: an int, of tensors a 0-d one of int64, which compiled graphs draw anew; one per row under vmap."""
DType = Annotated[Any, DTYPE]
"""A floating dtype, as the arrays' library has it."""
Axes = Annotated[tuple[int, ...], AXES]

Leading = Annotated[int, LEADING]
"""A number of leading dimensions, one more under vmap."""

A = TypeVar("A", bound=tuple[Any, ...])
R = TypeVar("R", bound=tuple[Any, ...])
Gradients = Mapping[str, Any]
Tangents = Mapping[str, Any]
Wanted = AbstractSet[str]


class Leaf(NamedTuple):
    """An argument that is no record itself: its name, its type, whether it may be None."""

    name: str
    kind: Kind
    optional: bool

    @property
    def slots(self) -> list[tuple[str, str]]:
        """(name, type) of what stands for it in a torch schema."""
        return [(self.name + end, kind + "?" * (self.optional and not kind.endswith("?")))
                for end, kind in self.kind.slots]  # fmt: skip

    def text(self, template: str) -> str:
        """Code for it, None where it is None."""
        code = template.format(self.name)
        return f"None if {self.name} is None else {code}" if self.optional and template != "{0}" else code


class Branch(NamedTuple):
    """A record, by the name of its field, with what is in it."""

    name: str
    record: type[Any]
    parts: list[Leaf | Branch]

    @property
    def leaves(self) -> list[Leaf]:
        """The arguments in it, those of records in it too."""
        return [leaf for one in self.parts for leaf in ([one] if isinstance(one, Leaf) else one.leaves)]

    @property
    def target(self) -> str:
        """Its variables, as the target of an assignment."""
        return "".join(one.name + ", " if isinstance(one, Leaf) else f"({one.target}), " for one in self.parts)


def branch(record: type[Any], name: str = "i") -> Branch:
    """The arguments of a record, in order."""
    found: list[Leaf | Branch] = []
    for field, hint in get_type_hints(record, include_extras=True).items():
        optional = get_origin(hint) is not Annotated and type(None) in get_args(hint)
        some = get_args(hint)[0] if optional else hint
        kind = next((one for one in getattr(some, "__metadata__", ()) if isinstance(one, Kind)), NUMBERS.get(some))
        if kind is not None:
            found.append(Leaf(field, kind, optional))
        elif hasattr(some, "_fields"):
            found.append(branch(some, field))
        else:
            raise TypeError(f"{record.__name__}.{field}: expected an array, a number or a record, got {hint}")
    return Branch(name, record, found)


# --- what a result is -------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """Memory for a result: laid out like an argument, or of a shape that follows from the record."""

    of: str
    """The argument beside which it lies."""
    dtype: str = ""
    """An argument that says its dtype, or a dtype's name; "" for the dtype of `of`."""
    shape: Callable[[Any], tuple[int, ...]] | str | None = None
    """Made of the record; or code for it, of the arguments' names."""
    wide: bool = False
    """Whether it is float32 where that dtype is a half."""
    spare: bool = False
    """Whether kernels do without it where only the first result is asked for."""
    when: str = ""
    """Code that says whether there is one; else it is of shape (0,)."""

    def text(self, variable: str, number: int, names: AbstractSet[str], memory: Memory) -> str:
        """The call that makes it; `names` are the arguments'."""
        dtype = self.dtype if self.dtype in names else f"_dtypes[{self.dtype!r}]" if self.dtype else f"{self.of}.dtype"
        dtype = f"_row_dtype({dtype})" if self.wide else dtype
        if self.when:
            first = next(iter(names))
            made, none = f"_empty({self.of}, {self.of}.shape, {dtype})", f"_empty({first}, (0,), {first}.dtype)"
            return f"{variable} = {made} if {self.when} else {none}"
        if self.shape is None:
            return f"{variable} = {memory.laid_like(self.of, dtype)}"
        shape = self.shape if isinstance(self.shape, str) else f"_shape{number}(_i)"
        return f"{variable} = _empty({self.of}, {shape}, {dtype})"


def like(of: str, dtype: str = "") -> Result:
    """A result laid out like an argument."""
    return Result(of, dtype)


def per_row(of: str, dtype: str = "", *, wide: bool = False, spare: bool = False) -> Result:
    """A number per row of an argument, the reduced axes kept as 1."""
    shape = f"tuple([1 if k in axes else n for k, n in enumerate({of}.shape)])"
    return Result(of, dtype, shape, wide=wide, spare=spare)


def gradient(of: str, when: str = "True", dtype: str = "") -> Result:
    """The gradient to an argument, of its shape; of shape (0,) where that is no array, or not `when`."""
    return Result(of, dtype, when=f"hasattr({of}, 'shape') and {when}")


OPERATIONS: list[Any] = []
"""Every operation of the rooms that are loaded."""


# --- code ----------------------------------------------------------------------------------------------------------


def parameters(kernel: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters; the compiled module lists those of its kernels."""
    native: tuple[str, ...] | None = _native.ARGUMENTS.get(getattr(kernel, "__name__", ""))
    if native is not None and kernel is getattr(_native, kernel.__name__):
        return native
    return tuple(inspect.signature(kernel).parameters)


def passed(
    kernel: Callable[..., Any], leaves: Mapping[str, Leaf], results: Mapping[str, bool], memory: Memory
) -> tuple[list[str], str]:
    """Lines that copy the arguments which a kernel wants dense, and its call; `results`: whether each may be None."""
    names, copies, call = parameters(kernel), [], []
    for name in names:
        if name == "i":
            call.append("_i")
        elif name == "r":
            call.append(f"({', '.join(results)},)")
        elif name in results:
            call.append(name if "i" in names else memory.seen(name, optional=results[name]))
        elif name in leaves:
            leaf = leaves[name]
            copies += [f"{name} = {leaf.text(leaf.kind.dense)}"] * bool(leaf.kind.dense)
            call.append(name if memory.direct else leaf.text(leaf.kind.native))
        else:
            raise TypeError(f"expected a kernel of {', '.join((*leaves, *results))}, got {name}")
    return copies, f"_kernel({', '.join(call)})"


def generated(parameters: str, lines: list[str], **names: Any) -> Callable[..., Any]:
    """A function from its lines, as dataclasses make theirs. No text comes from a caller of the library."""
    exec(f"def made({parameters}):\n    " + "\n    ".join(lines), names)  # noqa: S102
    made: Callable[..., Any] = names["made"]
    return made
