"""Estimators by name, and the file that keeps a fitted one: skops, so that reading it runs no code."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softargmax import stream
from softargmax.cli import info
from softargmax.cli.classify.columns import Columns
from softargmax.cli.errors import FailedRunError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODELS = ("softmax", "lda", "qda", "nb")
FORMAT = "softargmax fit 1"
TRUSTED = [
    f"softargmax.classify.{module}.{name}"
    for module, names in {
        "regression": ["SoftmaxRegression"],
        "discriminant": ["LinearDiscriminant", "QuadraticDiscriminant"],
        "gaussian_bayes": ["GaussianNaiveBayes"],
        "temperature": ["TemperatureScaling"],
    }.items()
    for name in names
]


@dataclass(frozen=True)
class Model:
    """A fitted estimator, and what it reads and tells."""

    target: str
    columns: Columns
    estimator: Any

    @property
    def classes(self) -> NDArray[Any]:
        """The classes, in the order of the probabilities."""
        found: NDArray[Any] = self.estimator.classes_
        return found


def estimator_of(name: str, *, strength: float, l1_ratio: float, calibrate: bool) -> Any:
    """Make the estimator that a name stands for; features have mean 0 and variance 1 before it."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from softargmax import classify

    made = {
        "softmax": classify.SoftmaxRegression(strength, l1_ratio=l1_ratio, tol=1e-6, max_iter=1000),
        "lda": classify.LinearDiscriminant(),
        "qda": classify.QuadraticDiscriminant(shrinkage="auto"),
        "nb": classify.GaussianNaiveBayes(),
    }[name]
    model = make_pipeline(StandardScaler(), made)
    return classify.TemperatureScaling(model) if calibrate else model


def save(path: str, model: Model) -> None:
    """Write a model, whole or not at all."""
    from skops.io import dumps

    told = {
        "format": FORMAT,
        "version": info.version(),
        "target": model.target,
        "numbers": model.columns.numbers,
        "categories": model.columns.categories,
        "estimator": model.estimator,
    }
    with stream.whole_file(path) as file:
        file.write(dumps(told))


def load(path: str) -> Model:
    """Read a model; a file that holds anything else is refused, and nothing in it runs."""
    import zipfile

    from skops.io import loads
    from skops.io.exceptions import UntrustedTypesFoundException

    if not Path(path).is_file():
        raise FailedRunError(f"{path}: {'a folder, not a file' if Path(path).is_dir() else 'no such file'}")
    data = Path(path).read_bytes()
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise FailedRunError(f"{path} is no model of `softargmax fit`")
    try:
        told = loads(data, trusted=TRUSTED)
    except UntrustedTypesFoundException as error:
        raise FailedRunError(f"{path} is no model of `softargmax fit`: {error}") from error
    except (KeyError, ValueError, TypeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise FailedRunError(f"{path} is damaged: {error}") from error
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise FailedRunError(f"{path} is no model of `softargmax fit`, or one of another version")
    return Model(told["target"], Columns(told["numbers"], told["categories"]), told["estimator"])
