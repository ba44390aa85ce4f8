"""The values of a command line: bare numbers (negative ones too), one file, or ``-``."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from softargmax.cli.errors import WrongUseError

if TYPE_CHECKING:
    from collections.abc import Sequence

SUBCOMMANDS = ("plot", "info", "bench", "demo")
DTYPES = {"f16": "float16", "f32": "float32", "f64": "float64"}
OPTIONS = ("--temperature", "--base", "--log", "--axis", "--output", "--json", "--dtype", "--memory", "--temperatures")


def is_number(text: str) -> bool:
    """Say whether a word of a command line is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def listed(arguments: Sequence[str], option: str) -> list[str]:
    """Repeat an option before each of the numbers that follow it: ``--t 1 10`` becomes ``--t 1 --t 10``."""
    given: list[str] = []
    inside = False
    for word in arguments:
        if inside and is_number(word):
            given += [option, word]
            continue
        inside = word == option
        if not inside:
            given.append(word)
    if inside and given[-2:-1] != [option]:
        raise WrongUseError(f"{option} needs at least one number")
    return given


def numbers(words: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Read bare numbers; anything else is wrong use."""
    for word in words:
        if not is_number(word):
            raise WrongUseError(unknown(word))
    return np.array([float(word) for word in words])


def source(words: Sequence[str]) -> str | None:
    """Give the one file among the values, or None where they are numbers."""
    others = [word for word in words if not is_number(word)]
    if not others:
        return None
    option = next((word for word in others if word.startswith("-") and word != "-"), None)
    if option is not None:
        raise WrongUseError(unknown(option))
    if len(words) > 1:
        raise WrongUseError(
            unknown(others[0]) if len(others) < len(words) else f"one file at a time: {' '.join(words)}"
        )
    if others[0] in SUBCOMMANDS and not Path(others[0]).exists():
        raise WrongUseError(unknown(others[0]))
    return others[0]


def unknown(word: str) -> str:
    """Say what is wrong with a word that is neither a number nor an option."""
    if word.startswith("-") and word != "-":
        near = difflib.get_close_matches(word.partition("=")[0], OPTIONS, 1)
        return f"there is no option {word}" + (f"; did you mean {near[0]}?" if near else "")
    if word in SUBCOMMANDS:
        return f"{word}: a subcommand stands first: softargmax {word} ..."
    return f"{word!r} is not a number; give numbers, or one file"


def dtype_named(name: str | None) -> str | None:
    """Read ``--dtype``: f16, f32, f64 or their long names."""
    if name is None or name in DTYPES.values():
        return name
    if name not in DTYPES:
        raise WrongUseError(f"--dtype {name}: it may be f16, f32 or f64")
    return DTYPES[name]


def axis_named(text: str) -> int | tuple[int, ...] | None:
    """Read ``--axis``: an integer, several with commas, or ``all``."""
    if text in ("all", "none", "None"):
        return None
    try:
        axes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise WrongUseError(
            f"--axis {text}: it may be an integer, integers with commas between (0,1), or all"
        ) from None
    return axes[0] if len(axes) == 1 else axes


def bytes_named(text: str) -> int:
    """Read a size such as 512M: K, M and G are powers of 1024.

    >>> bytes_named("512M"), bytes_named("1.5g"), bytes_named("4096")
    (536870912, 1610612736, 4096)
    """
    units = {"k": 10, "m": 20, "g": 30}
    digits = text.lower().removesuffix("ib").removesuffix("b")
    power = units.get(digits[-1:], 0)
    try:
        return int(float(digits[:-1] if power else digits) * (1 << power))
    except (ValueError, OverflowError):
        raise WrongUseError(f"--memory {text}: it may be a number of bytes such as 256M or 1G") from None
