"""The calls that bench.compare times on two installs, and the process that runs them for one install.

Each call is a `Line`. Lines use only public names, so that they run on any commit. They cover every room (folder of
src/softargmax) except core, cli, integrate and parallel, which have no kernels. There are lines for small and large
inputs, for arrays and tensors, and for calls with and without gradients. Lines with only a few scores measure the
overhead of a call.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import warnings
import weakref
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits

import softargmax as sa
from softargmax import nn, stream
from softargmax.classify import SoftmaxRegression
from softargmax.output import LogUniform

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[], object]

LEAST = 20e-3
"""Shortest time of a run in seconds. Shorter calls are repeated."""
THREADS = 2
SEVEN = np.array([1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0], np.float32)


class Line(NamedTuple):
    """A call to be timed. `make` makes the inputs and returns the call."""

    room: str
    name: str
    make: Callable[[], Call]


def normal(*shape: int, spread: float = 4.0) -> Any:
    """Return normal float32 numbers in an array."""
    return np.random.default_rng(sum(shape)).standard_normal(shape, np.float32) * np.float32(spread)


def tensor(*shape: int, spread: float = 4.0) -> Any:
    return torch.from_numpy(normal(*shape, spread=spread))


def classes(n: int, of: int) -> Any:
    return np.random.default_rng(n).integers(0, of, n)


def array_call(function: str, *arguments: Any, **options: Any) -> Call:
    """Return the call of a public function."""
    return partial(getattr(sa, function), *arguments, **options)


def tensor_call(function: str, *arguments: Any, **options: Any) -> Call:
    """Return the call of a public function, with tensors in place of the arrays."""
    return array_call(
        function, *(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in arguments), **options
    )


def backward_call(function: Callable[..., Any], *inputs: Any) -> Call:
    """Return a call that computes a forward pass and the gradients of the inputs. All incoming gradients are 1."""
    leaves = [x.requires_grad_() for x in inputs]
    g = torch.ones_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, g)


def step(layer: Any, rows: int, width: int) -> Call:
    """Return a call that computes an output layer's loss, and its gradients with respect to h and the parameters."""
    target = torch.from_numpy(classes(rows, layer.classes))
    return backward_call(lambda h, *_: layer(h, target), tensor(rows, width, spread=1.0), *layer.parameters())


def sampled() -> Call:
    return step(nn.SampledSoftmax(128, LogUniform(20_000), samples=512), 512, 128)


def fit() -> Call:
    x, y = load_digits(return_X_y=True)
    return lambda: SoftmaxRegression(max_iter=20, tol=1e-30).fit(x / 16, y)


def file() -> Call:
    """Return a call that reads a file of 16 MB, one megabyte at a time."""
    path = Path(tempfile.mkdtemp()) / "z.npy"
    np.save(path, normal(64, 65_536))
    read = partial(stream.logsumexp, path, memory=1 << 20)
    weakref.finalize(read, shutil.rmtree, path.parent)
    return read


def losses(n: int, k: int, **options: Any) -> Call:
    y = torch.from_numpy(classes(n, k))
    return backward_call(lambda z: sa.cross_entropy(z, y, **options), tensor(n, k))


def linear(n: int, d: int, k: int) -> Call:
    y = torch.from_numpy(classes(n, k))
    return backward_call(
        lambda h, w: sa.linear_cross_entropy(h, w, y), tensor(n, d, spread=1.0), tensor(k, d, spread=0.1)
    )


def attention(b: int, h: int, length: int, d: int, **options: Any) -> Call:
    q, k, v = tensor(3, b, h, length, d, spread=1.0)
    return backward_call(lambda q, k, v: sa.attention(q, k, v, **options), q.clone(), k.clone(), v.clone())


def into(n: int, k: int) -> Call:
    z = tensor(n, k)
    return array_call("softmax", z, out=torch.empty_like(z))


def ragged(n: int, segments: int) -> Call:
    cuts = np.sort(np.random.default_rng(2).integers(0, n + 1, segments - 1))
    return array_call("segment_softmax", normal(n), np.concatenate([[0], cuts, [n]]))


def entmax_loss(n: int, k: int) -> Call:
    y = torch.from_numpy(classes(n, k))
    return backward_call(lambda z: sa.entmax_loss(z, y, 1.5), tensor(n, k))


FEW = (4, 10)
LINES = (
    Line("normalize", "softmax of 7, NumPy", lambda: array_call("softmax", SEVEN)),
    Line("normalize", "softmax of 7, tensor", lambda: tensor_call("softmax", SEVEN)),
    Line("normalize", "softmax of 7, backward", lambda: backward_call(sa.softmax, torch.from_numpy(SEVEN.copy()))),
    Line("normalize", "softmax 256x32768, out=", lambda: into(256, 32_768)),
    Line("normalize", "log_softmax 4096x64, NumPy", lambda: array_call("log_softmax", normal(4096, 64))),
    Line("normalize", "logsumexp 512x8192, backward", lambda: backward_call(sa.logsumexp, tensor(512, 8192))),
    Line("normalize", "segment_softmax, 10^6 in 50,000", lambda: ragged(1_000_000, 50_000)),
    Line("loss", "cross_entropy 4x10, NumPy", lambda: array_call("cross_entropy", normal(*FEW), classes(*FEW))),
    Line("loss", "cross_entropy 4x10, tensor", lambda: tensor_call("cross_entropy", normal(*FEW), classes(*FEW))),
    Line("loss", "cross_entropy 4x10, backward", lambda: losses(*FEW)),
    Line("loss", "cross_entropy 256x32768, backward", lambda: losses(256, 32_768)),
    Line("loss", "with options 512x4096, backward", lambda: losses(512, 4096, label_smoothing=0.1, softcap=30.0)),
    Line("loss", "linear_cross_entropy 256x128x8192, backward", lambda: linear(256, 128, 8192)),
    Line("sparse", "sparsemax 4x10, tensor", lambda: tensor_call("sparsemax", normal(*FEW))),
    Line("sparse", "entmax 512x1000, NumPy", lambda: array_call("entmax", normal(512, 1000))),
    Line("sparse", "entmax_loss 128x4096, backward", lambda: entmax_loss(128, 4096)),
    Line("sample", "categorical 4x10, NumPy", lambda: array_call("categorical", normal(*FEW), seed=1)),
    Line("sample", "categorical 4x10, tensor", lambda: tensor_call("categorical", normal(*FEW), seed=1)),
    Line("sample", "top_p 16x32768", lambda: tensor_call("categorical", normal(16, 32_768), top_p=0.9, seed=1)),
    Line("attend", "attention 8 queries, backward", lambda: attention(1, 2, 8, 16)),
    Line("attend", "attention 512 queries, causal, backward", lambda: attention(1, 4, 512, 64, causal=True)),
    Line("output", "SampledSoftmax, 512 rows of 128", sampled),
    Line("output", "FullSoftmax, 64 rows of 64", lambda: step(nn.FullSoftmax(64, 5000), 64, 64)),
    Line("structure", "log_matmul 256x256x256", lambda: tensor_call("log_matmul", normal(256, 256), normal(256, 256))),
    Line("classify", "SoftmaxRegression, 20 steps on the digits", fit),
    Line("stream", "logsumexp of a file, 64x65536", file),
)


def serve() -> None:
    """Read requests [line, repeats] as lines of JSON, and print an answer to each.

    In a request, `line` is an index of LINES. The answer is the mean time of one call in seconds. With 0 repeats, the
    answer is instead a number of calls that take at least LEAST seconds in all.
    """
    warnings.simplefilter("ignore")  # a fit that does not converge emits a warning
    torch.set_num_threads(THREADS)
    sa.set_num_threads(THREADS)
    print(json.dumps({"softargmax": str(Path(sa.__file__).parent), "lines": [line[:2] for line in LINES]}), flush=True)
    prepared: tuple[int, Call] | None = None
    for request in sys.stdin:
        line, repeats = json.loads(request)
        if prepared is None or prepared[0] != line:
            prepared = None  # frees the arrays of the previous line
            prepared = line, LINES[line].make()
        print(json.dumps(timed(prepared[1], repeats) if repeats else enough(prepared[1])), flush=True)


def timed(call: Call, repeats: int) -> float:
    """Return the seconds per call, after one call that warms up caches and threads."""
    call()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def enough(call: Call) -> int:
    """Return a number of calls that take at least `LEAST` seconds in all."""
    repeats = 1
    while (seconds := repeats * min(timed(call, repeats) for _ in range(3))) < LEAST:
        repeats = max(2 * repeats, int(1.1 * repeats * LEAST / max(seconds, LEAST / 100)))
    return repeats


if __name__ == "__main__":
    serve()
