"""Parse the words of a command line: numbers (including negative numbers), one file, or ``-``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax import stream
from softargmax.cli.errors import FailedRunError, UnknownOptionError, WrongUseError, refused_as

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = {"f16": "float16", "f32": "float32", "f64": "float64"}


def number(text: str | float) -> float:
    """Return the number that a text represents, such as 1.5 or -inf.

    Python's digit separators, as in 1_000, raise ValueError. A finite number that overflows float64 raises
    WrongUseError.
    """
    if "_" in str(text):
        raise ValueError(f"{text!r} is not a number")
    value = float(text)
    if math.isinf(value) and any(letter.isdigit() for letter in str(text)):
        raise WrongUseError(f"{text}: too large for float64; infinity is written inf")
    return value


def is_number(text: str) -> bool:
    """True if a word of the command line is a number, even one that is too large for float64."""
    try:
        number(text)
    except ValueError:
        return False
    except WrongUseError:
        return True
    return True


def has_commas(word: str) -> bool:
    """True if a word consists of numbers that are separated or followed by commas.

    >>> has_commas("1,2,-3"), has_commas("1,"), has_commas("1"), has_commas("a,b.csv")
    (True, True, False, False)
    """
    return "," in word and all(map(is_number, word.strip(",").split(",")))


def spelled(word: str) -> str:
    """Return -nan as nan, -Infinity as -inf, and other words unchanged.

    typer could mistake -nan and -Infinity for the options -n and -I.

    >>> spelled("-nan"), spelled("-Infinity"), spelled("-2.50"), spelled("-n")
    ('nan', '-inf', '-2.50', '-n')
    """
    infinite = word.startswith("-") and is_number(word) and not math.isfinite(number(word))
    return str(number(word)) if infinite else word


def listed(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Repeat an option before each number that follows it: ``-t 1 10`` becomes ``-t 1 -t 10``."""
    found: list[str] = []
    option, count = "", 0
    for word in [*arguments, "--"]:
        if option and is_number(word):
            found += [option, word]
            count += 1
            continue
        if option and not count:
            problem = "" if word.startswith("-") else f"; {word!r} is not a number"
            raise WrongUseError(f"{option} needs at least one number{problem}")
        # A number can be attached to its option: -t0.1 or -t=0.1.
        name, attached, _ = (word[:2], "=", "") if is_number(word[2:]) else word.partition("=")
        option, count = (name, len(attached)) if name in names else ("", 0)
        if not option or attached:
            found.append(word)
    return found[:-1]


def numbers(words: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the numbers of a command line as an array."""
    return np.array([number(word) for word in words])


def source(words: Sequence[str]) -> str | None:
    """Return the file name in a command line, or None if all words are numbers."""
    others = [word for word in words if not is_number(word)]
    if not others:
        return None
    option = next((word for word in others if word.startswith("-") and word != "-"), None)
    if option is not None:
        raise unknown(option)
    if len(others) == len(words) > 1 and not has_commas(others[0]):
        raise WrongUseError(f"expected one file, got {' '.join(words)}")
    if len(words) > 1 or (has_commas(others[0]) and not Path(others[0]).exists()):
        raise unknown(others[0])
    return others[0]


def unknown(word: str) -> WrongUseError:
    """Return the error for a word that is neither a number nor a known option."""
    if has_commas(word):
        spaced = " ".join(word.strip(",").split(","))
        return WrongUseError(f"{word}: separate numbers by spaces, not commas: {spaced}")
    if word.startswith("-") and word != "-":
        return UnknownOptionError(word)
    return WrongUseError(f"{word!r} is not a number; give numbers, or one file")


def dtype_named(name: str | None) -> str | None:
    """Parse ``--dtype``: f16, f32, f64 or their long names."""
    if name is None or name in DTYPES.values():
        return name
    if name not in DTYPES:
        raise WrongUseError(f"--dtype {name}: expected f16, f32 or f64")
    return DTYPES[name]


def axis_named(text: str) -> int | tuple[int, ...] | None:
    """Parse ``--axis``: an integer, several integers separated by commas, or ``all``."""
    if text in ("all", "none", "None"):
        return None
    try:
        axes = tuple(int(part.replace("_", "?")) for part in text.split(","))
    except ValueError:
        raise WrongUseError(f"--axis {text}: expected an integer, integers separated by commas (0,1), or all") from None
    if len(set(axes)) < len(axes):
        raise WrongUseError(f"--axis {text}: expected each axis once")
    return axes[0] if len(axes) == 1 else axes


def bytes_named(text: str, option: str = "--memory") -> int:
    """Parse a size such as 512M. K, M and G are powers of 1024.

    >>> bytes_named("512M"), bytes_named("1.5g"), bytes_named("4096")
    (536870912, 1610612736, 4096)
    """
    units = {"k": 10, "m": 20, "g": 30}
    digits = text.lower().removesuffix("ib").removesuffix("b")
    power = units.get(digits[-1:], 0)
    try:
        size = int(number(digits[:-1] if power else digits) * (1 << power))
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise WrongUseError(f"{option} {text}: expected a number of bytes such as 256M or 1G")
    return size


def check_options(options: dict[str, Any], shape: Sequence[int] = (), **others: Any) -> None:
    """Raise WrongUseError for invalid options before any work.

    The check calls `stream.logsumexp` with one score, in an array with as many dimensions as `shape`. If the shape is
    not known, because the file is not read yet, the axis is not checked.
    """
    axis = options.get("axis") if len(shape) else None
    with refused_as(WrongUseError):
        stream.logsumexp(np.zeros([1] * len(shape)), **{**options, **others, "axis": axis})


def check_source(path: str) -> None:
    """Raise FailedRunError if the file does not exist or is a folder."""
    if not Path(path).exists() or Path(path).is_dir():
        raise FailedRunError(f"{path}: {'a folder, not a file' if Path(path).is_dir() else 'no such file'}")


def check_target(output: str, source: str | None = None) -> None:
    """Raise WrongUseError if the output is the source, or is a folder, a device or another file that is not regular."""
    target = Path(output)
    if not target.exists():
        return
    if not target.is_file():
        raise WrongUseError(f"{output}: expected a regular file or a new name")
    if source is not None and Path(source).exists() and target.samefile(source):
        raise WrongUseError(f"{output}: expected a file other than the source")
