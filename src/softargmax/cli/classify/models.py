"""The estimators of ``softargmax fit``, and model files in the skops format. Reading such a file runs no code."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from softargmax import stream
from softargmax.cli import info, parse
from softargmax.cli.classify.columns import Columns
from softargmax.cli.errors import FailedRunError, WrongUseError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODELS = ("softmax", "lda", "qda", "nb")
FORMAT = "softargmax fit 1"
PARTS = ("target", "numbers", "categories", "estimator")
TRUSTED = [
    f"softargmax.classify.{module}.{name}"
    for module, names in {
        "regression": ["SoftmaxRegression"],
        "discriminant": ["LinearDiscriminant", "QuadraticDiscriminant"],
        "gaussian_naive_bayes": ["GaussianNaiveBayes"],
        "temperature": ["TemperatureScaling"],
    }.items()
    for name in names
]


@dataclass(frozen=True)
class Model:
    """A fitted estimator, its input columns, and the name of its target column."""

    target: str
    columns: Columns
    estimator: Any

    @property
    def classes(self) -> NDArray[Any]:
        """The classes, in the order of the probability columns."""
        found: NDArray[Any] = self.estimator.classes_
        return found


def heads(classes: Any) -> list[str]:
    """Return the names of the probability columns in the output of ``softargmax predict``."""
    return [f"p_{name}" for name in classes]


def check_output(output: str | None, *sources: str) -> None:
    """Raise WrongUseError before any work if the output cannot be written or is one of the sources."""
    if output is None:
        return
    if not Path(output).resolve().parent.is_dir():
        raise WrongUseError(f"--output {output}: expected a folder that exists")
    for source in sources:
        parse.check_target(output, source)


def estimator_of(name: str, options: dict[str, Any], *, calibrate: bool) -> Any:
    """Return a pipeline of standardisation and the named estimator, temperature-scaled if `calibrate` is true."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from softargmax import classify

    made = {
        "softmax": classify.SoftmaxRegression(**options, tol=1e-6, max_iter=1000),
        "lda": classify.LinearDiscriminant(),
        "qda": classify.QuadraticDiscriminant(shrinkage="auto"),
        "nb": classify.GaussianNaiveBayes(),
    }[name]
    model = make_pipeline(StandardScaler(), made)
    return classify.TemperatureScaling(model) if calibrate else model


def save(path: str, model: Model) -> None:
    """Write a model file. The file appears only when it is complete."""
    from skops.io import dumps

    parts = (model.target, model.columns.numbers, model.columns.categories, model.estimator)
    data = {"format": FORMAT, "version": info.version(), **dict(zip(PARTS, parts, strict=True))}
    with stream.whole_file(path) as file:
        file.write(dumps(data))


def load(path: str) -> Model:
    """Read a model file without running code from it. Raise FailedRunError for any other file."""
    import zipfile

    from skops.io import loads
    from skops.io.exceptions import UntrustedTypesFoundException

    parse.check_source(path)
    data = Path(path).read_bytes()
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise FailedRunError(f"{path} is not a model of `softargmax fit`")
    try:
        contents = loads(data, trusted=TRUSTED)
    except UntrustedTypesFoundException as error:
        raise FailedRunError(f"{path} is not a model of `softargmax fit`: {error}") from error
    except Exception as error:  # skops raises many kinds of errors for damaged files
        raise FailedRunError(f"{path} is damaged: {str(error)[:200]}") from error
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise FailedRunError(f"{path} is not a model of `softargmax fit`, or was written by another version")
    damaged = f"{path} is damaged: its parts are inconsistent"
    parts: Any = [contents.get(name) for name in PARTS]
    target, numbers, categories, estimator = parts
    model = Model(target, Columns(numbers, categories), estimator)
    try:
        sound = is_sound(target, numbers, categories, estimator) and fits(model)
    except Exception as error:  # a damaged model can raise any exception
        raise FailedRunError(damaged) from error
    if not sound:
        raise FailedRunError(damaged)
    return model


def is_sound(target: Any, numbers: Any, categories: Any, estimator: Any) -> bool:
    """True if the contents of a model file have the types that ``softargmax fit`` writes."""
    if not all(isinstance(words, list) for words in (numbers, *categories.values())):
        return False
    for words in ([target, *numbers, *categories], *categories.values()):
        if len(set(words)) < len(words) or not all(isinstance(word, str) for word in words):
            return False
    if type(estimator).__name__ == "TemperatureScaling":
        estimator = estimator.estimator_
    steps = [type(step).__name__ for _, step in estimator.steps]
    made = {name.rpartition(".")[2] for name in TRUSTED} - {"TemperatureScaling"}
    return len(steps) == 2 and steps[0] == "StandardScaler" and steps[1] in made


def fits(model: Model) -> bool:
    """True if a model has two distinct classes or more, and predicts finite probabilities for a row of zeros."""
    classes = model.classes
    if classes.dtype.kind != "U" or not len(set(classes)) == len(classes) >= 2:
        return False
    p = model.estimator.predict_proba(np.zeros((1, model.columns.width)))
    return bool(p.shape == (1, len(classes)) and np.isfinite(p).all())
