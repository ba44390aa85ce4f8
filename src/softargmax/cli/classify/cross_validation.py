"""Cross-validate and fit an estimator, and report its warnings and errors."""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax.cli.classify.columns import leave_out
from softargmax.cli.errors import FailedRunError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from softargmax.cli.classify.columns import Columns

TINY = float(np.finfo(np.float64).tiny)
# A column "hardly varies" in a class if the class's standard deviation is below this fraction of the standard deviation
# over all rows.
SMALLEST_SPREAD = 0.02


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect warnings as lines of text. Keep only the last of several warnings that differ only in numbers."""
    lines: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lines
    messages = (" ".join(str(warning.message).split()) for warning in caught)
    lines += {re.sub(r"\d[\d.e+-]*", "", line): line for line in messages}.values()


def fitted(estimator: Any, X: NDArray[Any], y: NDArray[Any], parts: Any, columns: Columns) -> dict[str, Any]:
    """Cross-validate an estimator, fit it to all rows, and return the report."""
    from softargmax.classify import QuadraticDiscriminant

    try:
        report = validated(estimator, X, y, parts)
        estimator.fit(X, y)
    except np.linalg.LinAlgError as error:
        innermost = getattr(estimator, "estimator", estimator)
        if not isinstance(innermost[-1], QuadraticDiscriminant):
            raise
        raise FailedRunError(singular_message(X, y, parts, columns)) from error
    return report


def parts_of(folds: int, seed: int) -> Any:
    """Return the splitter of the cross-validation."""
    from sklearn.model_selection import StratifiedKFold

    return StratifiedKFold(folds, shuffle=True, random_state=seed)


def validated(estimator: Any, X: NDArray[Any], y: NDArray[Any], parts: Any) -> dict[str, Any]:
    """Return the cross-validated accuracy, log-loss and calibration error of an estimator.

    The entry ``shares`` has the accuracy and log-loss of a baseline that always predicts the class frequencies.
    """
    from sklearn.base import clone
    from sklearn.model_selection import cross_val_predict

    from softargmax.classify import calibration_report

    p = cross_val_predict(clone(estimator), X, y, cv=parts, method="predict_proba")
    found = calibration_report(y, p)
    _, counts = np.unique(y, return_counts=True)
    share = counts / len(y)
    return {
        "accuracy": found.accuracy,
        "accuracy_error": float(np.sqrt(found.accuracy * (1 - found.accuracy) / len(y))),
        "log_loss": found.log_loss,
        "calibration_error": found.ece,
        "calibration_interval": list(found.ece_interval),
        "shares": {"accuracy": float(share.max()), "log_loss": float(-(share * np.log(share)).sum())},
    }


def singular_message(X: NDArray[Any], y: NDArray[Any], parts: Any, columns: Columns) -> str:
    """Return the message for a singular covariance: it names a class, and a column that hardly varies in this class."""
    for rows in (np.arange(len(y)), *(rows for rows, _ in parts.split(X, y))):
        for name in np.unique(y):
            x = X[rows][y[rows] == name]
            spread = x.std(axis=0) / np.maximum(X[rows].std(axis=0), TINY)
            at = int(spread.argmin())
            if spread[at] < SMALLEST_SPREAD:
                column, word = columns.features[at]
                how = "hardly varies" if np.ptp(x[:, at]) else "does not vary"
                what = f"column {column!r}" + ("" if word is None else f" ({word!r} or not)")
                when = "" if len(rows) == len(y) else " without the rows of one fold"
                return f"qda: class {str(name)!r} {how} in {what}{when}; {leave_out(column)}, or use --model lda"
    return (
        f"qda: in class {str(most_singular_class(X, y))!r} some columns are linear functions of others; try --model lda"
    )


def most_singular_class(X: NDArray[Any], y: NDArray[Any]) -> Any:
    """Return the class whose covariance (as qda estimates it) has the smallest eigenvalue."""
    from sklearn.covariance import ledoit_wolf

    least = {}
    for name in np.unique(y):
        x = X[y == name] / X.std(axis=0)
        spread = x.std(axis=0)
        covariance = ledoit_wolf((x - x.mean(axis=0)) / spread)[0] * np.outer(spread, spread)
        least[name] = np.linalg.eigvalsh(covariance)[0]
    return min(least, key=least.__getitem__)
