"""Error messages of the output layers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
layers = importlib.import_module("tests.output.layers")

from softargmax import nn  # noqa: E402
from softargmax.output import Negatives, Uniform, Unigram  # noqa: E402

layer_of, drawn = layers.layer_of, layers.drawn
every = pytest.mark.parametrize("name", layers.LAYERS)
distributions = pytest.mark.parametrize("name", layers.DISTRIBUTIONS)

X, Y = drawn(2, 5, dtype=torch.float32), torch.tensor([0, 6])


@every
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda s: s(X, torch.tensor([0, 7])),
            IndexError,
            r"target: expected 0 to 6, or -100 \(ignored\), got 7 at \(1,\)",
        ),
        (
            lambda s: s(X[None], torch.tensor([[-1, 0]])),
            IndexError,
            r"target: expected 0 to 6, or -100 \(ignored\), got -1 at \(0, 0\)",
        ),
        (
            lambda s: s.log_prob_of(X, torch.tensor([0, 7])),
            IndexError,
            r"target: expected 0 to 6, or -100 \(ignored\), got 7 at \(1,\)",
        ),
        (lambda s: s(X, Y.float()), TypeError, "target: expected integers, one per row, got dtype torch.float32"),
        (lambda s: s(X, Y[:1]), ValueError, r"target: expected the rows' shape, \(2,\), got \(1,\)"),
        (lambda s: s([[1.0]], Y), TypeError, "hidden: expected a tensor, got list"),
        (lambda s: s(X[:, :4], Y), ValueError, r"hidden: expected shape \(..., 5\), got \(2, 4\)"),
        (
            lambda s: s(X + 1j, Y),
            TypeError,
            "hidden: expected dtype float16, bfloat16, float32, float64, .*got torch.complex64",
        ),
        (lambda s: s(X.to("meta"), Y), ValueError, "hidden: expected a tensor on cpu, got one on meta"),
        (lambda s: s.log_prob(X[:, :2]), ValueError, r"hidden: expected shape \(..., 5\), got \(2, 2\)"),
        (lambda s: s.topk(X, 0), ValueError, "k: expected 1 to 7, got 0"),
        (lambda s: s.topk(X, 8), ValueError, "k: expected 1 to 7, got 8"),
        (
            lambda s: s.sample(X, -1),
            ValueError,
            r"seed: expected an integer from 0 to 2\^64 - 1, got a negative number",
        ),
    ],
)
def test_errors(name: str, call: Callable[[Any], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(layers.LAYERS[name](5, 7))


@distributions
def test_nan_rows(name: str) -> None:
    layer, hidden = layer_of(name), drawn(3, 5, dtype=torch.float32)
    hidden[1, 2] = torch.nan
    found = layer.topk(hidden, 2)
    assert found.index[1].tolist() == [-1, -1]
    assert found.values[1].isnan().all()
    assert torch.equal(found.index[[0, 2]], layer.topk(hidden[[0, 2]], 2).index)
    with pytest.raises(ValueError, match="hidden: expected vectors without NaN probabilities, got NaN in row 1"):
        layer.sample(hidden, 0)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            lambda: nn.SampledSoftmax(5, [1, 2], samples=1),
            TypeError,
            r"sampler: expected a Sampler \(Uniform, LogUniform, Unigram, ..\), got list",
        ),
        (lambda: nn.SampledSoftmax(5, Uniform(7), samples=0), ValueError, "samples: expected 1 or more, got 0"),
        (
            lambda: nn.SampledSoftmax(5, Uniform(7), samples=8),
            ValueError,
            "n: expected at most 7, the number of classes with a probability above 0, got 8",
        ),
        (lambda: nn.SampledSoftmax(5, Uniform(7), samples=1.5), TypeError, "samples: expected an integer, got 1.5"),
        (
            lambda: nn.SampledSoftmax(5, Uniform(7), samples=1, seed=-1),
            ValueError,
            r"seed: expected an integer from 0 to 2\^64 - 1, got a negative number",
        ),
        (
            lambda: nn.SampledSoftmax(5, Uniform(7), samples=1, in_batch=3),
            TypeError,
            "in_batch: expected a Sampler, got int",
        ),
        (
            lambda: nn.SampledSoftmax(5, Uniform(7), samples=1, in_batch=Uniform(8)),
            ValueError,
            "in_batch: expected a sampler of 7 classes, got one of 8",
        ),
        (
            lambda: nn.SampledSoftmax(5, Uniform(7), samples=1, shared=False, in_batch=Uniform(7)),
            ValueError,
            "in_batch: expected None if shared is False, got a sampler",
        ),
        (
            lambda: nn.ImportanceSampledSoftmax(5, Uniform(7), samples=4, most=3),
            ValueError,
            r"most: expected at least .* \(samples\), got 3",
        ),
        (
            lambda: nn.ImportanceSampledSoftmax(5, Uniform(7), samples=4, least_ess=-1),
            ValueError,
            "least_ess: expected a finite number of at least 0, got -1",
        ),
        (
            lambda: nn.NCE(5, Uniform(7), samples=4, log_z="no"),
            ValueError,
            "log_z: expected 'learned', 'context' or a number, got 'no'",
        ),
        (lambda: nn.NCE(5, Uniform(7), samples=4, log_z=None), TypeError, "log_z: expected a finite number, got None"),
        (
            lambda: nn.TargetSampledSoftmax(5, 7).use([7]),
            IndexError,
            r"classes: expected classes from 0 to 6, got 7 at \(0,\)",
        ),
        (
            lambda: nn.TargetSampledSoftmax(5, 7).use([]),
            ValueError,
            r"classes: expected shape \(n,\), one class or more, got \(0,\)",
        ),
        (
            lambda: nn.TargetSampledSoftmax(5, 7).use([[1]]),
            ValueError,
            r"classes: expected shape \(n,\), one class or more, got \(1, 1\)",
        ),
        (
            lambda: nn.FullSoftmax(5, 7, weight=torch.zeros(7, 5)),
            TypeError,
            "weight: expected a Parameter, for example an embedding's, got Tensor",
        ),
        (
            lambda: nn.FullSoftmax(5, 7, weight=torch.nn.Parameter(torch.zeros(6, 5))),
            ValueError,
            r"weight: expected shape \(7, 5\), got \(6, 5\)",
        ),
        (lambda: nn.FullSoftmax(5, 0), ValueError, "classes: expected 1 or more, got 0"),
        (
            lambda: nn.FullSoftmax(5, 7, dtype=torch.int64),
            TypeError,
            "dtype: expected float16, bfloat16, float32 or float64, got torch.int64",
        ),
        (
            lambda: nn.SampledSoftmax(5, Unigram([1, -1]), samples=1),
            ValueError,
            "counts: expected a finite number, 0 or above, got -1 for class 1",
        ),
        (
            lambda: nn.SampledSoftmax(5, Unigram([1, float("nan")]), samples=1),
            ValueError,
            "counts: expected a finite number, 0 or above, got nan for class 1",
        ),
    ],
)
def test_errors_of_construction(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize(
    ("negatives", "error", "match"),
    [
        ([1, 2], TypeError, r"negatives: expected Negatives\(index, log_expected\), got list"),
        (
            Negatives(torch.zeros(3), torch.zeros(3)),
            TypeError,
            "negatives.index: expected integers, got dtype torch.float32",
        ),
        (
            Negatives(torch.zeros(3, 3).long(), torch.zeros(3, 3)),
            ValueError,
            r"negatives.index: expected shape \(n,\) or \(2, 'n'\), got \(3, 3\)",
        ),
        (
            Negatives(torch.zeros(3).long(), torch.zeros(2)),
            ValueError,
            r"negatives.log_expected: expected the shape of negatives.index, \(3,\), got \(2,\)",
        ),
        (
            Negatives(torch.tensor([7]), torch.zeros(1)),
            IndexError,
            r"negatives.index: expected classes from 0 to 6, got 7 at \(0,\)",
        ),
    ],
)
def test_errors_of_negatives(negatives: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        nn.SampledSoftmax(5, Uniform(7), samples=2)(X, Y, negatives)


@pytest.mark.parametrize("method", ["log_prob", "log_prob_of", "topk", "sample"])
def test_negative_sampling_defines_no_distribution(method: str) -> None:
    layer = layer_of("negative")
    given = {"log_prob": (X,), "log_prob_of": (X, Y), "topk": (X, 2), "sample": (X, 0)}[method]
    with pytest.raises(NotImplementedError, match="NegativeSampling has no distribution"):
        getattr(layer, method)(*given)
    assert layer.scores(X).shape == (2, 40)
