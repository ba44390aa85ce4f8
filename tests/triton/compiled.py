"""Compile the kernels that a call launches, for GPUs that are not there, and read what the compiler made of them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from softargmax.core import dispatch, triton_launch
from softargmax.core.record import OPERATIONS

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""Shared memory of a block in KiB, by compute capability."""

MEASURED = 90
"""The compute capability of the GPUs that were had. There no kernel that serves by default may spill registers."""
_POINTERS = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.int8: "*i8", torch.int32: "*i32", torch.int64: "*i64", torch.bool: "*i1",
}  # fmt: skip


class Launch(NamedTuple):
    """A recorded launch: the kernel, the number of warps, and the arguments by name."""

    kernel: Any
    warps: int
    named: dict[str, Any]


class Report(NamedTuple):
    """What the compiler made of a kernel: instructions, registers, bytes, and the rules that it breaks."""

    name: str
    registers: int
    spills: int
    shared: int
    instructions: int
    broken: list[str]


@contextmanager
def recorded(*modules: Any) -> Iterator[list[Launch]]:
    """Record launches from these modules in place of running them."""
    found: list[Launch] = []

    def record(kernel: Any, tile: Any, **named: Any) -> None:
        found.append(Launch(kernel, tile.warps, named | tile.named))

    kept = [module.launch for module in modules]
    for module in modules:
        module.launch = record
    try:
        yield found
    finally:
        for module, launch in zip(modules, kept, strict=True):
            module.launch = launch


class Specialised(NamedTuple):
    """What Triton compiles a launch for: types and constants by name, and which arguments 16 divides, by place."""

    signature: dict[str, str]
    constants: dict[str, Any]
    attributes: dict[tuple[int], list[list[Any]]]

    @property
    def key(self) -> str:
        """The same text for launches of one kernel that are compiled once."""
        return repr(self)


def specialised(launch: Launch) -> Specialised:
    """What Triton compiles a recorded launch for."""
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(launch.kernel.arg_names):
        value, aligned = launch.named[name], [["tt.divisibility", 16]]
        if name.isupper():
            constants[name] = value
        elif isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
            attributes[(place,)] = aligned
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1 and name not in triton_launch.RUNTIME:
            constants[name] = 1
        else:
            signature[name] = "i32" if abs(value) < 1 << 31 else "i64"
            if value % 16 == 0 and name not in triton_launch.RUNTIME:
                attributes[(place,)] = aligned
    return Specialised(
        {name: signature.get(name, "constexpr") for name in launch.kernel.arg_names}, constants, attributes
    )


def different(found: list[Launch]) -> list[Launch]:
    """The first launch of each kind that is compiled."""
    return list({(one.kernel.__name__, one.warps, specialised(one).key): one for one in reversed(found)}.values())[::-1]


def compile_for(launch: Launch, capability: int) -> Any:
    """Compile a recorded launch as Triton would do it on a GPU of this compute capability."""
    source = ASTSource(launch.kernel, *specialised(launch))
    options = {"num_warps": launch.warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def has_run(kernel: Any) -> bool:
    """True if a kernel is of a file whose kernels serve by default, because they have run on a GPU."""
    found = (one.kernel("cuda").__module__ for one in OPERATIONS if one.name in dispatch.TRIED_ON_GPUS)
    return kernel.fn.__module__ in found


def report(launch: Launch, capability: int) -> Report:
    """Compile a launch and report."""
    made = compile_for(launch, capability)
    ptx, sass = made.asm["ptx"], _tool("nvdisasm", made.asm["cubin"], "-c")
    usage = _tool("cuobjdump", made.asm["cubin"], "--dump-resource-usage")
    operations = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9_.]+)", sass, re.MULTILINE)
    operations = [one for one in operations if not one.startswith("NOP")]
    spills = sum(one.split(".")[0] in ("LDL", "STL") for one in operations)
    broken = ["registers"] * bool(spills and capability == MEASURED and has_run(launch.kernel))
    broken += ["shared memory"] * (made.metadata.shared > SHARED[capability] << 10)
    broken += ["float atomic"] * bool(re.search(r"\b(atom|red)\.[^;]*\.(f32|f64|f16|bf16)", ptx))
    broken += ["flushed subnormals"] * any("ftz" in line and "ex2" not in line for line in ptx.splitlines())
    broken += ["contraction"] * bool(re.search(r"\b(mul|add|sub)\.f(32|64)\b", ptx))
    name = f"{launch.kernel.__name__} { {key: x for key, x in launch.named.items() if key.isupper()} }"
    registers = re.search(r"REG:(\d+)", usage)
    return Report(name, int(registers[1]) if registers else 0, spills, made.metadata.shared, len(operations), broken)


def _tool(name: str, cubin: bytes, *options: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin", delete=False) as file:
        file.write(cubin)
    try:
        done = subprocess.run([TOOLS / name, *options, file.name], capture_output=True, text=True, check=False)
        return done.stdout
    finally:
        Path(file.name).unlink()
