"""Errors of the command: wrong use (exit code 2) and failed runs (exit code 1)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from numpy.exceptions import AxisError

if TYPE_CHECKING:
    from collections.abc import Iterator

try:
    from typer import TyperException
except ImportError:  # older versions of typer raise click's exceptions
    from click import ClickException as TyperException  # type: ignore[assignment]

__all__ = [
    "FailedRunError",
    "TyperException",
    "UnknownOptionError",
    "WrongUseError",
    "refused_as",
]


class WrongUseError(Exception):
    """The command line is invalid: exit code 2."""


class UnknownOptionError(WrongUseError):
    """The command line has an unknown option."""


class FailedRunError(Exception):
    """The run failed: exit code 1."""


@contextmanager
def refused_as(kind: type[Exception], what: str = "") -> Iterator[None]:
    """Raise the library's ValueError and TypeError as `kind`, with `what` before the message.

    AxisError becomes WrongUseError. ImportError and RuntimeError become FailedRunError. Use this only around calls that
    check the user's input, so that a bug elsewhere keeps its traceback.
    """
    try:
        yield
    except AxisError as error:
        raise WrongUseError(str(error)) from error
    except (ValueError, TypeError) as error:
        raise kind(f"{what}{error}") from error
    except (ImportError, RuntimeError) as error:  # the requested implementation cannot be loaded
        raise FailedRunError(str(error)) from error
