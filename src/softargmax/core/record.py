"""Records, which are NamedTuples of an operation's arguments or results, and how they are passed to kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from softargmax.core import _native
from softargmax.core.processes import SpreadAxes
from softargmax.core.scale import Scale

if TYPE_CHECKING:
    from softargmax.core.memory import Memory

# --- arguments --------------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A type of argument: its slots (the parameters that it becomes in a torch schema), and code that converts the
    argument to its slots and back.

    In the code, `{0}` stands for the argument. In `unflatten`, `{0}`, `{1}`, .. stand for the slots.
    """

    slots: tuple[tuple[str, str], ...]
    flatten: str = "{0}"
    unflatten: str = "{0}"
    dense: str = ""
    """Code for a copy that kernels can read. The copy must not be freed before the kernel returns."""
    native: str = "{0}"
    """Code for the value that kernels receive; unused if kernels accept the library's arrays (`Memory.direct`)."""
    arrays: tuple[str, ...] = ()
    """Code for each array in the argument."""
    number: str = ""
    """Code that is true if the argument is a number instead of an array; "" if no number can replace the array."""


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
AXES = Kind(
    (("", "int[]"), ("_spread", "str?")),
    flatten="*({0}, getattr({0}, 'spread', None))",
    unflatten="(tuple({0} or ()) if {1} is None else _SpreadAxes({0}, {1}))",  # `by_batch` (torch_vmap.py) passes None
)
LEADING = Kind((("", "int"),))
UNFLATTENED = {"_Scale": Scale, "_SpreadAxes": SpreadAxes}
"""What the code of `Kind.unflatten` uses."""
NUMBERS = {kind: Kind((("", kind.__name__),)) for kind in (float, int, bool, str)}

Array = Annotated[Any, ARRAY]
"""An array with any strides."""
Dense = Annotated[Any, DENSE]
"""An array that kernels receive contiguous and in float64."""
Packed = Annotated[Any, PACKED]
"""An array that kernels receive contiguous."""
Bare = Annotated[Any, BARE]
"""An array of any dtype that kernels receive as a NumPy array."""
Integers = Annotated[Any, INTEGERS]
"""Integers that kernels receive contiguous and in int64."""
Rowwise = Annotated[Any, ROWWISE]
"""A float for all rows, or an array with one number per row: float64 if the library has it, int64 for counts."""
Beta = Annotated[Scale, BETA]
"""beta = hi + lo: two floats or two arrays. The gradient with respect to hi is used as the gradient of beta."""
Seed = Annotated[Any, SEED]
"""64 random bits: an int, a 0-d int64 tensor, or two words of 32 bits in a JAX array. Under vmap, one seed per row.

A compiled graph of torch draws a new tensor at each call.
"""
DType = Annotated[Any, DTYPE]
"""A floating dtype of the arrays' library."""
Axes = Annotated[tuple[int, ...], AXES]
"""The axes of a row: a tuple, or `SpreadAxes` if the rows are spread over processes."""

Leading = Annotated[int, LEADING]
"""A number of leading dimensions. vmap adds 1."""

A = TypeVar("A", bound=tuple[Any, ...])
R = TypeVar("R", bound=tuple[Any, ...])
Gradients = Mapping[str, Any]
Tangents = Mapping[str, Any]
Wanted = AbstractSet[str]


class Leaf(NamedTuple):
    """One argument that is not itself a record, such as an array or a number. It may be None if `optional`."""

    name: str
    kind: Kind
    optional: bool

    @property
    def slots(self) -> list[tuple[str, str]]:
        """The (name, type) of each slot of the argument in a torch schema."""
        return [(self.name + end, kind + "?" * (self.optional and not kind.endswith("?")))
                for end, kind in self.kind.slots]  # fmt: skip

    def text(self, template: str) -> str:
        """Return the template's code for this argument. If the argument is None, the code evaluates to None."""
        code = template.format(self.name)
        return f"None if {self.name} is None else {code}" if self.optional and template != "{0}" else code


class Branch(NamedTuple):
    """A record: the name of the field that contains it, its type and its arguments."""

    name: str
    record: type[Any]
    parts: list[Leaf | Branch]

    @property
    def leaves(self) -> list[Leaf]:
        """All arguments of the record, including those of nested records."""
        return [leaf for one in self.parts for leaf in ([one] if isinstance(one, Leaf) else one.leaves)]

    @property
    def target(self) -> str:
        """Code for the left side of an assignment that unpacks the record into one variable per argument."""
        return "".join(one.name + ", " if isinstance(one, Leaf) else f"({one.target}), " for one in self.parts)


def branch(record: type[Any], name: str = "i") -> Branch:
    """The arguments of a record, in order, nested records included."""
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


def flattener(tree: Branch) -> Callable[[Any], tuple[Any, ...]]:
    """Return the function that returns the slots of a record."""
    flat = [leaf.kind.flatten.format(leaf.name) for leaf in tree.leaves]
    return generated("_i", [f"{tree.target}= _i", f"return ({', '.join(flat)},)"])


def unflattener(tree: Branch) -> Callable[..., Any]:
    """Return the function that makes a record of its slots."""
    names: dict[str, Any] = dict(UNFLATTENED)
    packed = packing(tree, names)
    slots = ", ".join(slot for leaf in tree.leaves for slot, _ in leaf.slots)
    return generated(slots, [f"return {packed}"], **names)


def packing(tree: Branch, names: dict[str, Any]) -> str:
    """Code that makes a record of its slots. The code uses `names`, to which this function adds."""
    record = f"_Record{len(names)}"
    names[record] = tree.record
    parts = [
        one.kind.unflatten.format(*(slot for slot, _ in one.slots)) if isinstance(one, Leaf) else packing(one, names)
        for one in tree.parts
    ]
    return f"{record}({', '.join(parts)})"


# --- results ----------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """How memory for a result is allocated: laid out like an argument, or with a shape computed from the record."""

    of: str
    """The argument whose library and device the result has."""
    dtype: str = ""
    """The name of a dtype, or of an argument that is a dtype; "" for the dtype of `of`."""
    shape: Callable[[Any], tuple[int, ...]] | str | None = None
    """A function of the record, or code that uses the arguments' names; None to lay the result out like `of`."""
    wide: bool = False
    """True if the result is float32 when `dtype` is half precision."""
    spare: bool = False
    """True if kernels skip the result when only the first result is requested."""
    when: str = ""
    """Code that is true if the result is computed. If it is false, the result has shape (0,)."""

    laid: str = ""
    """Code that is true if the result has the shape of `of` and its order of the axes in memory."""

    def text(self, variable: str, number: int, names: AbstractSet[str], memory: Memory) -> str:
        """Code that allocates the result. `names` contains the names of the arguments."""
        dtype = self.dtype if self.dtype in names else f"_dtypes[{self.dtype!r}]" if self.dtype else f"{self.of}.dtype"
        dtype = f"_row_dtype({dtype})" if self.wide else dtype
        if self.shape is not None and not isinstance(self.shape, str):
            return f"{variable} = _empty({self.of}, _shape{number}(_i), {dtype})"
        made = laid = memory.like_code(self.of, dtype)
        if self.shape is not None or self.when:
            made = memory.empty_code(self.of, self.shape or f"{self.of}.shape", dtype)
        if self.laid:
            made = f"({laid}) if {self.laid} else ({made})"
        if self.when:
            made = f"({made}) if {self.when} else {memory.nothing_code(next(iter(names)))}"
        return f"{variable} = {made}"


def like(of: str, dtype: str = "") -> Result:
    """A result laid out like an argument."""
    return Result(of, dtype)


def per_row(of: str, dtype: str = "", *, wide: bool = False, spare: bool = False) -> Result:
    """A result with one number per row of an argument. The reduced axes are kept as 1."""
    shape = f"tuple([1 if k in axes else n for k, n in enumerate({of}.shape)])"
    return Result(of, dtype, shape, wide=wide, spare=spare)


def gradient(of: str, when: str = "True", dtype: str = "") -> Result:
    """A result for the gradient of an argument, in the argument's shape.

    Its shape is (0,) if the argument is not an array, or if the code `when` evaluates to False.
    """
    return Result(of, dtype, when=f"hasattr({of}, 'shape') and {when}")


OPERATIONS: list[Any] = []
"""All operations of the rooms that are loaded."""


# --- generated code ---------------------------------------------------------------------------------------------------


def parameters(kernel: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters. `_native.ARGUMENTS` lists those of native kernels."""
    if is_compiled(kernel):
        names: tuple[str, ...] = _native.ARGUMENTS[kernel.__name__]
        return names
    return tuple(inspect.signature(kernel).parameters)


def is_compiled(kernel: Callable[..., Any]) -> bool:
    """True for a kernel of the compiled core, False for one written in Python."""
    name = getattr(kernel, "__name__", "")
    return name in _native.ARGUMENTS and kernel is getattr(_native, name)


def passed(
    kernel: Callable[..., Any], leaves: Mapping[str, Leaf], results: Mapping[str, bool], memory: Memory
) -> tuple[list[str], str]:
    """Return code that makes arguments dense, and code that calls the kernel.

    `results` maps the name of each result to True if the result may be None.
    """
    names, copies, call = parameters(kernel), [], []
    for name in names:
        if name == "i":
            call.append("_i")
        elif name == "r":
            call.append(f"({', '.join(results)},)")
        elif name in results:
            call.append(name if "i" in names else memory.kernel_result(name, optional=results[name]))
        elif name in leaves:
            leaf = leaves[name]
            copies += [f"{name} = {leaf.text(leaf.kind.dense)}"] * bool(leaf.kind.dense)
            call.append(name if memory.direct else leaf.text(leaf.kind.native))
        else:
            raise TypeError(f"kernel: expected parameters among {', '.join((*leaves, *results))}, got {name}")
    return copies, f"_kernel({', '.join(call)})"


def generated(parameters: str, lines: list[str], **names: Any) -> Callable[..., Any]:
    """Compile a function from lines of source code. `dataclasses` does the same. No line contains text from a user."""
    exec(f"def made({parameters}):\n    " + "\n    ".join(lines), names)  # noqa: S102
    made: Callable[..., Any] = names["made"]
    return made
