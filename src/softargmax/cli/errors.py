"""The two ways in which the command stops short."""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from numpy.exceptions import AxisError

from softargmax.core.extras import install

if TYPE_CHECKING:
    from collections.abc import Iterator

try:
    from typer import TyperException
except ImportError:  # a typer that still stands on click
    from click import ClickException as TyperException  # type: ignore[assignment]

__all__ = ["FailedRunError", "TyperException", "UnknownOptionError", "WrongUseError", "refused_as", "require"]


class WrongUseError(Exception):
    """The command line asks for what cannot be meant: exit code 2."""


class UnknownOptionError(WrongUseError):
    """A command is given an option that it does not have."""


class FailedRunError(Exception):
    """The run failed: exit code 1."""


def require(need: str, extra: str, **packages: str) -> None:
    """Look before any work whether modules are there, each with the name of its package; `extra` brings them."""
    for module, package in packages.items():
        if find_spec(module) is None:
            raise FailedRunError(f"{need} {package}, which is not installed: {install(extra)}")


@contextmanager
def refused_as(kind: type[Exception], what: str = "") -> Iterator[None]:
    """Tell what the library refuses as `kind`, with `what` before it (an axis out of range is wrong use always).

    It stands only around a call that checks what a user gave: a bug anywhere else keeps its traceback.
    """
    try:
        yield
    except AxisError as error:
        raise WrongUseError(str(error)) from error
    except (ValueError, TypeError) as error:
        raise kind(f"{what}{error}") from error
    except (ImportError, RuntimeError) as error:  # the implementation asked for cannot be loaded
        raise FailedRunError(str(error)) from error
