"""The command ``softargmax``, with the entry point `main`.

Importing this package imports neither typer nor rich. Without the extra ``cli``, `main` prints one line that names the
extra. The files in this folder define the subcommands. The files in ``tour/`` define the stops of the tour.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from softargmax.core.extras import install

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 (success), 1 (failed run), 2 (wrong use) or 130 (interrupt)."""
    try:
        from softargmax.cli.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich", "click"):
            raise
        message = f"the command needs {error.name}, which is not installed: {install('cli')}"
        print(f"softargmax: {message}", file=sys.stderr)
        return 1
    except ImportError as error:  # the compiled core rejects the value of SOFTARGMAX_ISA
        if not str(error).startswith("SOFTARGMAX_ISA"):
            raise
        print(f"softargmax: {error}", file=sys.stderr)
        return 2
    return run(sys.argv[1:] if argv is None else argv)
