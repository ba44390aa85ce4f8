"""Compute every case in this process, and say which digests differ from the committed ones, or record them anew.

    PYTHONPATH=THIS_CLONE ANY_INSTALLATION/bin/python -m tests.digests.record [ROOM ...]

compares that installation with `digests.json` and `changed.json`; run it in a folder without a `softargmax` of its own.
It prints the name of each case that differs, and its digest: if the change is meant, both go to `changed.json` with the
reason. SOFTARGMAX_ISA chooses the instruction set: the library promises the same bits on all. `--old` leaves
`changed.json` out, `--against FILE` compares with another record, `--write FILE` writes one, `--add` records the cases
that `digests.json` does not have. `--kernels` leaves out the
definition, second derivatives, forward mode and vmap: they are made of the arrays' own operations, and of kernels that
other cases call. `digests.json` was recorded with commit f4b594a, before the operations became records:

    PYTHONPATH=THIS_CLONE OLD_INSTALLATION/bin/python -m tests.digests.record --write digests.json

NumPy, torch and their BLAS choose kernels by processor, too, and theirs do not agree to the bit. So they are told to
use what every x86-64 processor has (`PINNED`); `--free` leaves them alone. What then has other bits is marked by "~" in
the file: such a digest holds for the versions of NumPy and torch that it was recorded with.
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
ROOMS = "normalize", "sparse", "sample", "loss", "attend", "output"
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
"""By what is computed, then by variant."""


def versions() -> dict[str, str]:
    """What foreign kernels depend on, beside the processor."""
    return {"machine": platform.machine(), **{name: metadata.version(name) for name in ("numpy", "torch")}}


def computed(room: str, *, kernels: bool = False) -> Digests:
    """All digests of a room, or those of `kernels`; dtypes other than float32 share one, to keep the file small."""
    import numpy as np
    import torch
    from tests.digests.digest import digest

    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("error")  # the same by its other name, without a second of imports
    found: Digests = {}
    names = set()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for case in import_module(f"tests.digests.room_{room}").cases():
            if case.name in names:
                raise ValueError(f"{case.name}: there are two of this name")
            names.add(case.name)
            if kernels and is_composed(case.variant):
                continue
            variants, one = found.setdefault(case.what, {}), digest(case.run)
            variant = re.sub(r"\b(float64|float16|bfloat16)\b", "other dtypes", case.variant)
            before = variants.get(variant, one)
            variants[variant] = one if before == one else blake2b((before + one).encode(), digest_size=8).hexdigest()
    return found


def is_composed(variant: str) -> bool:
    """Whether the variant adds no kernel to those of others."""
    return not COMPOSED.isdisjoint(variant.split())


def of_kernels(found: Digests) -> Digests:
    """Those that `computed` makes of kernels."""
    return {what: {v: x for v, x in cases.items() if not is_composed(v)} for what, cases in found.items()}


def differing(here: Digests, there: Digests) -> list[str]:
    """The names of the cases that are not the same, or are only in one."""
    one, other = (
        {(what, v): x.strip(FOREIGN) for what, c in all_.items() for v, x in c.items()} for all_ in (here, there)
    )
    return sorted(
        f"{what} | {v}" for what, v in one.keys() | other.keys() if one.get((what, v)) != other.get((what, v))
    )


def text(found: dict[str, Digests]) -> str:
    """JSON: tuples of variants; of every room and function the number of such a tuple, and a line for every label."""
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
    """What `text` wrote."""
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
    """By reason, the cases that were meant to change, and their new digests."""
    found: dict[str, dict[str, str]] = json.loads(CHANGED.read_text())
    return found


def expected(room: str) -> Digests:
    """The digests of today."""
    found = read()[room]
    for cases in changed().values():
        for name, digest in cases.items():
            its, _, rest = name.partition(": ")
            if its == room:
                what, _, variant = rest.rpartition(" | ")
                found[what][variant] = digest
    return found


def compared(room: str, here: Digests, there: Digests) -> list[str]:
    """What differs, of what may be compared with these versions of NumPy and torch."""
    names = differing(here, there)
    if json.loads(FILE.read_text())["recorded with"] == versions():
        return names
    foreign = {f"{what} | {v}" for what, c in read()[room].items() for v, x in c.items() if x.startswith(FOREIGN)}
    return [name for name in names if name not in foreign]


def marked(found: dict[str, Digests]) -> dict[str, Digests]:
    """The same with a mark where foreign kernels, left alone, give other bits."""
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
    """The committed record, and what it does not have of these."""
    every = read()
    for room, digests in found.items():
        every[room] |= {what: cases | every[room].get(what, {}) for what, cases in digests.items()}
    return every


def main() -> int:
    """Compare, or record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--old", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--add", action="store_true")
    parser.add_argument("--free", action="store_true")
    asked = parser.parse_args()
    if not asked.free:
        os.environ.update(PINNED)  # before what reads them is loaded

    import softargmax

    print(softargmax.__file__, os.environ.get("SOFTARGMAX_ISA", "best"), file=sys.stderr)
    found, wrong = {}, 0
    for room in asked.rooms or ROOMS:
        begin = time.process_time()
        found[room] = computed(room, kernels=asked.kernels)
        count = sum(map(len, found[room].values()))
        print(f"{room}: {count} digests, {time.process_time() - begin:.1f} s", file=sys.stderr)
        if not (asked.write or asked.add):
            there = read(asked.against or FILE)[room] if asked.against or asked.old else expected(room)
            there = of_kernels(there) if asked.kernels else there
            names = compared(room, found[room], there)
            wrong += len(names)
            for name in names:
                what, _, variant = name.rpartition(" | ")
                print(f"{room}: {name}\t{found[room].get(what, {}).get(variant, 'is gone')}")
    if asked.add:
        FILE.write_text(text(with_new(marked(found))))
    elif asked.write:
        asked.write.write_text(text(found if asked.free else marked(found)))
    else:
        print(f"{wrong} differ", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
