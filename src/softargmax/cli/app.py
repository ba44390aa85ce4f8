"""The entry point: run the subcommand, report errors in one line, and return the exit code.

The default subcommand is softmax. It handles every command line without a subcommand, such as ``softargmax -1 2 -3.5``.
It treats unknown options as values, because -3.5 looks like an option. `parse.py` then rejects values that are neither
numbers nor a file.
"""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from softargmax.cli import bench, demo, info, maps, normalize, plot
from softargmax.cli.classify import fit, predict
from softargmax.cli.errors import FailedRunError, TyperException, UnknownOptionError, WrongUseError, refused_as
from softargmax.cli.parse import is_number, listed, spelled
from softargmax.cli.words import command as words
from softargmax.core import dispatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT = "softmax"
ON_VALUES: dict[str, Callable[..., None]] = {
    DEFAULT: normalize.command,
    "logsumexp": maps.logsumexp,
    "entropy": maps.entropy,
    "sparsemax": maps.sparsemax,
    "entmax": maps.entmax,
    "top-k": maps.top_k,
    "sample": maps.sample,
    "plot": plot.command,
}
"""Subcommands that treat unknown options as values, so that -3.5 is a number."""
SUBCOMMANDS: dict[str, Callable[..., None]] = {
    **ON_VALUES,
    "info": info.command,
    "bench": bench.command,
    "demo": demo.command,
    "train-words": words.command,
    "fit": fit.command,
    "predict": predict.command,
}

# Errors of the operating system, lack of memory, and characters that the terminal cannot encode. They are reported in
# one line, like the errors in errors.py. All other exceptions are bugs in softargmax and keep their traceback.
RUN_ERRORS = (OSError, MemoryError, UnicodeEncodeError)
INTERRUPTED = 130  # 128 + SIGINT: shells and typer return this code after an interrupt

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Compute softmax of numbers, files and streams: [bold]softargmax 1 2 3 4 1 2 3[/]",
    epilog="Numbers and files need no subcommand: softargmax -1 2 -3.5 · softargmax scores.npy -o probs.npy --axis 0 · "
    "softargmax --temperature 10 --log - < scores.csv",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name, function in SUBCOMMANDS.items():
    settings: dict[str, Any] = {"ignore_unknown_options": True} if name in ON_VALUES else {}
    app.command(name, context_settings=settings)(function)


def _version(requested: bool) -> None:
    if requested:
        print(info.version())
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(  # noqa: ARG001 handled by its callback
        False, "--version", help="Show the version and exit.", callback=_version, is_eager=True
    ),
) -> None:
    """Handle the options that precede the name of the subcommand. Check environment variables."""
    with refused_as(WrongUseError):
        dispatch.requested_name()
    unusable = info.native().get("unusable", "")
    if unusable.startswith("SOFTARGMAX_ISA"):
        raise WrongUseError(unusable)


def dispatched(arguments: Sequence[str]) -> list[str]:
    """Return the command line as typer expects it: with a subcommand, and one number after each ``--temperatures``.

    A command line without a subcommand gets the default subcommand.

    >>> dispatched(["1", "2"]), dispatched(["plot", "1", "--temperatures", "1", "10"])
    (['softmax', '1', '2'], ['plot', '1', '--temperatures', '1', '--temperatures', '10'])
    """
    words = list(arguments) or ["--help"]
    if words[0] in ("-h", "--help", "--version"):
        return words
    if words[0] not in SUBCOMMANDS:
        for word in words:
            if word in SUBCOMMANDS and not Path(word).exists():
                raise WrongUseError(f"{word}: expected the subcommand first: softargmax {word} ...")
        unknown = not is_number(words[0]) and not Path(words[0]).exists()
        if unknown and (near := difflib.get_close_matches(words[0], SUBCOMMANDS, 1)):
            raise WrongUseError(f"{words[0]}: no such file or subcommand; did you mean {near[0]}?")
        words.insert(0, DEFAULT)
    words = [spelled(word) for word in words]
    return listed(words, ("--temperatures", "-t")) if words[0] == "plot" else words


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code, as `softargmax.cli.main` does."""
    if sys.stdout is None:  # Python sets sys.stdout to None if the file descriptor is closed
        closed = "standard output is closed; redirect it to a file, or to /dev/null to discard the output"
        print(f"softargmax: {closed}", file=sys.stderr)
        return 1
    words: list[str] = []
    try:
        words = dispatched(arguments)
        code = app(args=words, prog_name="softargmax", standalone_mode=False)
        sys.stdout.flush()  # raise now, not at exit, if the disk is full or the pipe is closed
    except BrokenPipeError:
        # The reader of the output has closed the pipe. Redirect stdout, so that Python's flush at exit does not fail
        # too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        code = INTERRUPTED
    except UnknownOptionError as error:
        code = code_of(error)
        print(f"softargmax: {no_option(str(error), words[0])}", file=sys.stderr)
    except (TyperException, WrongUseError, FailedRunError, *RUN_ERRORS) as error:
        code = code_of(error)
        print(f"softargmax: {sentence(error)}", file=sys.stderr)
    if code == INTERRUPTED:
        print("softargmax: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def code_of(error: Exception) -> int:
    """Return the exit code of an error: 2 for wrong use, 1 for a failed run."""
    if isinstance(error, TyperException):
        return int(error.exit_code)
    return 2 if isinstance(error, WrongUseError) else 1


def no_option(option: str, command: str) -> str:
    """Return the message for an unknown option. The message suggests the most similar option of the command."""
    parameters = typer.main.get_group(app).commands[command].params
    own = [name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)]
    near = difflib.get_close_matches(option.partition("=")[0], own, 1)
    return f"{command} has no option {option}" + (f"; did you mean {near[0]}?" if near else "")


def sentence(error: Exception) -> str:
    """Return the message of an error in one line."""
    text = str(error)
    if isinstance(error, TyperException):
        text = error.format_message()
    elif isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(text.split()) or type(error).__name__
