"""``softargmax fit --choices``: the conditional logit of choices among alternatives, from a CSV file in long format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.markup import escape

from softargmax.cli import render
from softargmax.cli.classify import columns
from softargmax.cli.classify.cross_validation import collected_warnings
from softargmax.cli.errors import FailedRunError, refused_as
from softargmax.cli.texts import column

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from softargmax.cli.classify.csv_file import Source

TITLE = "conditional logit"
WORDS = {"true": 1.0, "false": 0.0}


class Roles(NamedTuple):
    """Names or numbers of the columns that are not features."""

    target: str
    choosers: str
    alternatives: str | None = None
    offset: str | None = None

    def resolved(self, source: Source) -> Roles:
        """Return the names of the columns. Raise an error if there is no such column, or one has two roles."""
        there = source.table().column_names
        options = ("--target", "--choices", "--alternatives", "--offset")
        found = [
            None if name is None else there[column(name, there, option, source.name)]
            for name, option in zip(self, options, strict=True)
        ]
        for place, name in enumerate(found):
            if name is not None and name in found[:place]:
                raise FailedRunError(
                    f"{source.name}: expected different columns for {options[found.index(name)]} and {options[place]}, "
                    f"got {name!r} for both"
                )
        return Roles(*found)  # type: ignore[arg-type]


def command(source: Source, roles: Roles, left_out: list[str], *, json: bool) -> None:
    """Fit a model, and print the report."""
    found = fitted(source, roles, left_out)
    if json:
        print(render.as_json(found))
    else:
        printed(found)


def fitted(source: Source, roles: Roles, left_out: list[str]) -> dict[str, Any]:
    """Fit a model, and return the report."""
    from softargmax.classify import ConditionalLogit

    target, owner, labels, offset = roles.resolved(source)
    no_features = [name for name in (owner, labels, offset) if name is not None]
    chosen, table, target = columns.learned(source, target, [*left_out, *no_features])
    if chosen.categories:
        name = next(iter(chosen.categories))
        raise FailedRunError(
            f"{source.name}: column {name!r}: expected numbers as features of an alternative, got words; "
            f"{columns.leave_out(name)}, or name the alternatives with --alternatives"
        )
    X = chosen.matrix(table, source.name)
    y = np.array([rank_in(word, target, source.name, row) for row, word in enumerate(table[target].to_pylist(), 1)])
    names = None if labels is None else columns.words_of(table, labels, source.name).astype(str)
    owners = columns.words_of(table, owner, source.name).astype(str)
    known = None if offset is None else offset_of(offset, source)
    model = ConditionalLogit()
    with (
        refused_as(FailedRunError, f"{source.name}: {target} is y, and {owner} are choosers: "),
        collected_warnings() as warned,
    ):
        model.fit(X, y, owners, alternatives=names, offset=known)
    rows = model.summary()._asdict()
    rows["names"] = [*chosen.numbers, *model.names_[X.shape[1] :].tolist()]
    test = model.likelihood_ratio_test()
    return {
        "rows": len(y), "choosers": model.n_choosers_, "features": X.shape[1], "steps": model.n_iter_,
        "log_likelihood": model.log_likelihood_, "null_log_likelihood": model.null_log_likelihood_,
        "pseudo_r2": 1.0 - model.log_likelihood_ / model.null_log_likelihood_,
        "likelihood_ratio": test._asdict(), "coefficients": rows, "warnings": warned,
    }  # fmt: skip


def offset_of(name: str, source: Source) -> NDArray[np.float64]:
    """Return the known part of each row's score."""
    only = columns.Columns([name], {})
    return only.matrix(only.read(source), source.name)[:, 0]


def rank_in(word: str | None, target: str, source: str, row: int) -> float:
    """Return a cell of the target column as a number. pandas writes True and False."""
    try:
        return WORDS[word.lower()] if word is not None and word.lower() in WORDS else float(word or "")
    except ValueError:
        raise FailedRunError(
            f"{source}: column {target!r}, row {row}: expected 1 for the chosen alternative and 0 for others, or "
            f"ranks, got {word!r}"
        ) from None


def printed(report: dict[str, Any]) -> None:
    """Print the report: the data, the coefficients, and how well the model fits."""
    out = render.console()
    out.print(f"{report['rows']:,} rows, {report['choosers']:,} choosers, {report['features']} features")
    shown = render.table("", "coefficient", "standard error", "z", "p-value", "95 % interval", title=TITLE)
    for name, coef, error, z, p, low, high in zip(*report["coefficients"].values(), strict=True):
        shown.add_row(escape(name), f"{coef:.4g}", f"{error:.3g}", f"{z:.2f}", f"{p:.4f}", f"{low:.4g} to {high:.4g}")
    out.print(shown)
    test = report["likelihood_ratio"]
    out.print(
        f"log-likelihood {report['log_likelihood']:.2f}, without coefficients {report['null_log_likelihood']:.2f} "
        f"(McFadden's R2 {report['pseudo_r2']:.3f}, p {test['p_value']:.2g})",
        soft_wrap=True,
    )
    for line in report["warnings"]:
        out.print(f"[dim]warning: {escape(line)}[/]", soft_wrap=True)
