"""Compute the digests of all cases, and compare them with the committed digests or record them.

    PYTHONPATH=THIS_CLONE ANY_INSTALLATION/bin/python -m tests.digests.record [ROOM ...]

This command compares the installation with `digests.json` and `changed.json`. Run it in a folder that contains no
`softargmax` folder. The command prints the name and the digest of each case that differs. If the change is intended,
add both to `changed.json` with the reason. A ROOM is a folder of src/softargmax. SOFTARGMAX_ISA selects the instruction
set. The library promises the same bits on all instruction sets.

- `--old` ignores `changed.json`.
- `--against FILE` compares with the digests in FILE, which `--write` wrote.
- `--write FILE` writes the digests to FILE.
- `--add` records the cases that `digests.json` does not have.
- `--kernels` skips the reference implementation ("definition"), second derivatives, forward mode and vmap. Their cases
  call only operations of the array library, and kernels that other cases also call.

`digests.json` was recorded with commit f4b594a, before core/operation.py existed:

    PYTHONPATH=THIS_CLONE OLD_INSTALLATION/bin/python -m tests.digests.record --write digests.json

NumPy, torch and their BLAS also choose kernels by processor, and the results of these kernels differ in bits. Therefore
the environment variables in `PINNED` select kernels that run on every x86-64 processor. `--free` does not set these
variables. Digests that differ with `--free` are marked by "~" in the file. Marked digests are valid only for the
versions of NumPy and torch that are named in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import warnings
from hashlib import blake2b
from importlib import import_module, metadata
from pathlib import Path

HERE = Path(__file__).parent
FILE, CHANGED = HERE / "digests.json", HERE / "changed.json"
ROOMS = "normalize", "sparse", "sample", "loss", "attend", "output", "structure"
PINNED = {
    "ATEN_CPU_CAPABILITY": "default",
    "DNNL_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "OPENBLAS_CORETYPE": "Nehalem",
    "OMP_WAIT_POLICY": "passive",
}
FOREIGN = "~"
COMPOSED = {"definition", "second", "forward", "vmap"}

Digests = dict[str, dict[str, str]]
"""Digests by function and options, then by variant."""


def versions() -> dict[str, str]:
    """Return the machine type and the versions of NumPy and torch. The bits of their results depend on these."""
    return {"machine": platform.machine(), **{name: metadata.version(name) for name in ("numpy", "torch")}}


def computed(room: str, *, kernels: bool = False) -> Digests:
    """Return the digests of a room. With `kernels`, skip the cases that `is_composed` describes.

    The dtypes other than float32 share one digest, which keeps the file small.
    """
    import numpy as np
    import torch
    from tests.digests.digest import digest

    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")  # like use_deterministic_algorithms, without its imports (1 s)
    found: Digests = {}
    names = set()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in import_module(f"tests.digests.room_{room}").cases():
            if case.name in names:
                raise ValueError(f"{case.name}: expected a unique name, got a second case of this name")
            names.add(case.name)
            if kernels and is_composed(case.variant):
                continue
            variants, one = found.setdefault(case.what, {}), digest(case.run)
            variant = re.sub(r"\b(float64|float16|bfloat16)\b", "other dtypes", case.variant)
            before = variants.get(variant, one)
            variants[variant] = one if before == one else blake2b((before + one).encode(), digest_size=8).hexdigest()
    return found


def is_composed(variant: str) -> bool:
    """True if every kernel that the variant calls is also called by other variants."""
    return not COMPOSED.isdisjoint(variant.split())


def of_kernels(found: Digests) -> Digests:
    """Return only the digests that `computed` returns with `kernels=True`."""
    return {what: {v: x for v, x in cases.items() if not is_composed(v)} for what, cases in found.items()}


def differing(here: Digests, there: Digests) -> list[str]:
    """Return the names of the cases that differ, or that only one of the two records has."""
    one, other = (
        {(what, v): x.strip(FOREIGN) for what, c in all_.items() for v, x in c.items()} for all_ in (here, there)
    )
    return sorted(
        f"{what} | {v}" for what, v in one.keys() | other.keys() if one.get((what, v)) != other.get((what, v))
    )


def text(found: dict[str, Digests]) -> str:
    """Return the record as JSON.

    The record first lists all tuples of variants. Then it has a list for each room. An item of this list is a function,
    the index of a tuple of variants, and for each label of options the digests of these variants.
    """
    signatures = list(dict.fromkeys(tuple(cases) for digests in found.values() for cases in digests.values()))
    parts = [f'"recorded with": {json.dumps(versions())}']
    parts.append('"variants": [\n' + ",\n".join(map(json.dumps, signatures)) + "\n]")
    for room, digests in found.items():
        groups: dict[tuple[str, int], list[str]] = {}
        for what, cases in digests.items():
            function, _, label = what.partition(": ")
            line = f"{json.dumps(label)}: {json.dumps(' '.join(cases.values()))}"
            groups.setdefault((function, signatures.index(tuple(cases))), []).append(line)
        lines = (f"{json.dumps(group)[:-1]}, {{\n" + ",\n".join(lines) + "\n}]" for group, lines in groups.items())
        parts.append(f"{json.dumps(room)}: [\n" + ",\n".join(lines) + "\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def read(path: Path = FILE) -> dict[str, Digests]:
    """Read a record that `text` wrote."""
    found = json.loads(path.read_text())
    return {
        room: {
            f"{function}: {label}" if label else function: dict(
                zip(found["variants"][signature], digests.split(), strict=True)
            )
            for function, signature, cases in found[room]
            for label, digests in cases.items()
        }
        for room in ROOMS
        if room in found
    }


def changed() -> dict[str, dict[str, str]]:
    """Return the intended changes: for each reason, the cases and their new digests."""
    found: dict[str, dict[str, str]] = json.loads(CHANGED.read_text())
    return found


def expected(room: str) -> Digests:
    """Return the expected digests of a room: the record with all intended changes."""
    found = read()[room]
    for cases in changed().values():
        for name, digest in cases.items():
            own_room, _, case = name.partition(": ")
            if own_room == room:
                what, _, variant = case.rpartition(" | ")
                found[what][variant] = digest
    return found


def compared(room: str, here: Digests, there: Digests) -> list[str]:
    """Return the names of cases that differ. With other versions of NumPy or torch, skip digests marked "~"."""
    names = differing(here, there)
    if json.loads(FILE.read_text())["recorded with"] == versions():
        return names
    foreign = {f"{what} | {v}" for what, c in read()[room].items() for v, x in c.items() if x.startswith(FOREIGN)}
    return [name for name in names if name not in foreign]


def marked(found: dict[str, Digests]) -> dict[str, Digests]:
    """Return the digests. Those that differ with `--free` have the mark "~"."""
    with tempfile.TemporaryDirectory() as folder:
        free = Path(folder) / "free.json"
        environment = {name: value for name, value in os.environ.items() if name not in PINNED}
        command = [sys.executable, "-m", "tests.digests.record", *found, "--free", "--write", str(free)]
        subprocess.run(command, env=environment, check=True)
        other = read(free)
    return {
        room: {
            what: {v: x if other[room][what][v] == x else FOREIGN + x for v, x in cases.items()}
            for what, cases in digests.items()
        }
        for room, digests in found.items()
    }


def with_new(found: dict[str, Digests]) -> dict[str, Digests]:
    """Return the committed record, extended by the cases that it does not have."""
    every = read()
    for room, digests in found.items():
        every[room] = every.get(room, {}) | {
            what: cases | every.get(room, {}).get(what, {}) for what, cases in digests.items()
        }
    return every


def _count(digests: dict[str, Digests]) -> int:
    """Return the number of digests of all rooms."""
    return sum(len(cases) for room in digests.values() for cases in room.values())


def main() -> int:
    """Compare the digests, or record them. Return 1 if some differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--old", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--free", action="store_true")
    options = parser.parse_args()
    if not options.free:
        os.environ.update(PINNED)  # NumPy and torch read these variables when they are imported

    import softargmax

    print(softargmax.__file__, os.environ.get("SOFTARGMAX_ISA", "best"), file=sys.stderr)
    found, wrong = {}, 0
    for room in options.rooms or ROOMS:
        begin = time.process_time()
        found[room] = computed(room, kernels=options.kernels)
        print(f"{room}: {_count({room: found[room]})} digests, {time.process_time() - begin:.1f} s", file=sys.stderr)
        if not (options.write or options.add):
            there = read(options.against or FILE)[room] if options.against or options.old else expected(room)
            there = of_kernels(there) if options.kernels else there
            names = compared(room, found[room], there)
            wrong += len(names)
            for name in names:
                what, _, variant = name.rpartition(" | ")
                print(f"{room}: {name}\t{found[room].get(what, {}).get(variant, 'missing')}")
    if options.add:
        old, new = read(), with_new(marked(found))
        FILE.write_text(text(new))
        print(f"{_count(new) - _count(old)} added", file=sys.stderr)
    elif options.write:
        options.write.write_text(text(found if options.free else marked(found)))
    else:
        print(f"{wrong} differ", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
