"""Write the lists of files in docs/design.md: the files of each room, and the first sentence of each file.

    python tools/rooms.py            write
    python tools/rooms.py --check    exit with 1 if the page and the files differ

A room is a folder of src/softargmax. All rooms have the same kinds of files. `kind` returns the kind of a file.
tests/test_rooms.py refuses a new file of the last kind, "helpers".
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "softargmax"
PAGE = ROOT / "docs" / "design.md"
BEGIN, END = "<!-- rooms -->\n", "<!-- end rooms -->\n"

FAMILIES = ("normalize", "sparse", "sample", "loss", "attend", "output", "structure")
"""The rooms that have kernels."""
OTHERS = ("classify", "stream", "parallel", "integrate", "core")
KINDS = {
    "public functions and classes": "one file per function or close family",
    "options and results": r"(check_options|results)\.py",
    "operations": r"(arguments|(\w+_)?operations)\.py",
    "definitions": r"reference(_\w+)?\.py",
    "kernels": r"kernels\.py|native_\w+\.py|\w+\.[ch]pp",
    "CUDA kernels": r"triton_\w+\.py",
    "torch modules": r"modules\.py|torch_\w+\.py",
    "helpers": r"\w+\.py",
}
"""The kinds of files in a room, with patterns of their names.

The patterns of the six kinds in the middle are tried in order, and the first one that fits decides. If none fits, a
file that defines a public name has the first kind, and any other file has the last kind.
"""


def files(room: str) -> list[Path]:
    """Return the source files of a room, without its `__init__.py`."""
    found = [p for p in (PACKAGE / room).rglob("*") if p.suffix in (".py", ".hpp", ".cpp")]
    return sorted(p for p in found if p.name != "__init__.py")


def public_names(room: str) -> set[str]:
    """Return the names in a room's `__all__`, and those of `softargmax.nn`."""
    names: set[str] = set()
    for path in (PACKAGE / room / "__init__.py", PACKAGE / "nn.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Name) and target.id in ("__all__", "HOME") and node.value:  # type: ignore[union-attr]
                names |= {x.value for x in ast.walk(node) if isinstance(x, ast.Constant) and isinstance(x.value, str)}
    return names


def kind(path: Path, public: set[str]) -> str:
    """Return the kind of a file, a key of KINDS."""
    for name, pattern in list(KINDS.items())[1:-1]:
        if re.fullmatch(pattern, path.name):
            return name
    body = ast.parse(path.read_text(encoding="utf-8")).body
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return next(iter(KINDS)) if defined & public else "helpers"


def first_sentence(path: Path) -> str:
    """Return the first sentence of a file's docstring or first comment."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        about = ast.get_docstring(ast.parse(text)) or ""
    else:
        about = " ".join(line.removeprefix("//").strip() for line in re.match(r"(//.*\n)*", text)[0].splitlines())  # type: ignore[index]
    about = " ".join(re.split(r"\n\s*\n", about)[0].split())
    sentence = re.match(r".*?\.(?= |$)", about)
    return (sentence[0] if sentence else about).rstrip(":.").replace("|", "\\|")


def side_by_side() -> list[str]:
    """Return the table of the rooms that have kernels: a row for each kind of file."""
    lines = ["| | " + " | ".join(f"`{room}/`" for room in FAMILIES) + " |", "|---" * (1 + len(FAMILIES)) + "|"]
    for name in KINDS:
        cells = []
        for room in FAMILIES:
            public = public_names(room)
            cells.append(" ".join(f"`{p.name}`" for p in files(room) if kind(p, public) == name))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def listed(room: str) -> list[str]:
    """Return the table of the files of one room, in the order of KINDS."""
    public, order = public_names(room), list(KINDS)
    lines = [f"### {room}", "", "| file | content |", "|---|---|"]
    for path in sorted(files(room), key=lambda p: order.index(kind(p, public))):
        name = path.relative_to(PACKAGE / room).as_posix()
        lines.append(f"| `{name}` | {first_sentence(path)} |")
    return lines


def written() -> str:
    """Return the generated section of docs/design.md."""
    parts = [*side_by_side(), ""]
    for room in (*FAMILIES, *OTHERS):
        parts += [*listed(room), ""]
    return "\n".join(parts)


def main() -> int:
    """Write the section, or compare it with the page if --check is given. Return the exit code."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    new = before + BEGIN + written() + END + after
    if "--check" in sys.argv[1:]:
        if new != page:
            print("docs/design.md: the lists of files differ from the files of the rooms; run python tools/rooms.py")
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
