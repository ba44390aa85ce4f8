"""Each room has the files that docs/design.md lists. A file named like a public function does not hide the function."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from tools import rooms  # noqa: E402 tools is not an installed package

# For each room, the files that have no standard name (tools/rooms.py). These lists may only shrink.
HELPERS = {
    "normalize": set[str](),
    "sparse": {"support.py"},
    "sample": {"undrawable_rows.py"},
    "loss": {"linear_inputs.py"},
    "attend": {"dropout.py"},
    "structure": {"contraction.py", "draws.py"},
    "output": {
        "alias.py",
        "counts.py",
        "inclusion_probability.py",
        "philox_stream.py",
        "tree_build.py",
        "word2vec_files.py",
    },
}


@pytest.mark.parametrize("room", rooms.FAMILIES)
def test_a_room_has_the_files_of_its_shape(room: str) -> None:
    public = rooms.public_names(room)
    by_kind: dict[str, set[str]] = {kind: set() for kind in rooms.KINDS}
    for path in rooms.files(room):
        by_kind[rooms.kind(path, public)].add(path.name)
    assert by_kind["helpers"] == HELPERS[room], "the files without a standard kind are not those of HELPERS"
    assert "operations.py" in by_kind["operations"]
    assert "reference.py" in by_kind["definitions"]
    assert {"args.hpp", "bind.cpp", "kernels.cpp"} <= by_kind["kernels"]
    assert by_kind["torch modules"]
    assert by_kind["public functions and classes"]


@pytest.mark.parametrize("room", rooms.FAMILIES)
def test_every_public_name_is_defined_in_a_public_file(room: str) -> None:
    public = rooms.public_names(room)
    shown = {p.stem for p in rooms.files(room) if p.suffix == ".py" and p.stem in public}
    assert all(rooms.kind(rooms.PACKAGE / room / f"{name}.py", public) == next(iter(rooms.KINDS)) for name in shown)


def test_the_page_lists_the_files() -> None:
    subprocess.run([sys.executable, str(ROOT / "tools" / "rooms.py"), "--check"], check=True)


IMPORTS = """
import importlib, sys
room, *files = sys.argv[1:]
for file in files:
    importlib.import_module(f"softargmax.{room}.{file}")
package, top = importlib.import_module(f"softargmax.{room}"), importlib.import_module("softargmax")
for file in files:
    for of in (package, top):
        found = getattr(of, file, None)
        if found is not None and not callable(found):
            sys.exit(f"{of.__name__}.{file} is {found!r}")
"""


@pytest.mark.parametrize("order", [sorted, lambda files: sorted(files, reverse=True)], ids=["forwards", "backwards"])
@pytest.mark.parametrize("room", rooms.FAMILIES)
def test_a_file_named_like_its_function_does_not_hide_it(room: str, order) -> None:
    public = rooms.public_names(room)
    files = order(p.stem for p in rooms.files(room) if p.suffix == ".py" and p.stem in public)
    subprocess.run([sys.executable, "-c", IMPORTS, room, *files], check=True)


FOLDERS = ("src", "tests", "tools", "bench", "docs", "cmake", "examples")
NAMES = {p.name for folder in FOLDERS for p in (ROOT / folder).rglob("*.*")}
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"`(?:[\w.<>-]+/)*([\w-]+\.(?:py|pyi|hpp|cpp))`", page.read_text(encoding="utf-8"))
    made_up = {"triton_kernels.py", "softmax_kernels.py"} | {name for name in named if "<" in name}
    assert set(named) - NAMES - made_up == set()


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120
