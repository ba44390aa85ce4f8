"""Refuse large files: source of more than 500 lines, or any file of more than 512 KiB.

Usage: python tools/sizes.py FILE...
"""

from __future__ import annotations

import sys
from pathlib import Path

MAX_LINES = 500
MAX_BYTES = 512 * 1024
SOURCE = {".py", ".pyi", ".cpp", ".hpp", ".h"}


def complaints(path: Path) -> list[str]:
    """Return the reasons why `path` is too large."""
    data = path.read_bytes()
    found = []
    if len(data) > MAX_BYTES:
        found.append(f"{path}: expected at most {MAX_BYTES} bytes, got {len(data)}")
    if path.suffix in SOURCE and (lines := data.count(b"\n")) > MAX_LINES:
        found.append(f"{path}: expected at most {MAX_LINES} lines, got {lines}; split it by meaning")
    return found


if __name__ == "__main__":
    found = [line for name in sys.argv[1:] if Path(name).is_file() for line in complaints(Path(name))]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
