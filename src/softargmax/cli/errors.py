"""The two ways in which the command stops short."""

from __future__ import annotations

try:
    from typer import TyperException
except ImportError:  # a typer that still stands on click
    from click import ClickException as TyperException  # type: ignore[assignment]

__all__ = ["FailedRunError", "TyperException", "WrongUseError"]


class WrongUseError(Exception):
    """The command line asks for what cannot be meant: exit code 2."""


class FailedRunError(Exception):
    """What was asked could not be done: exit code 1."""
