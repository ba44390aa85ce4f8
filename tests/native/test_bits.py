"""The bits of a row's result depend only on the row and the options, not on batch, layout, threads or streaming."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.native.operations import row_operations, same_bits, scores, segments

import softargmax

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DTYPES = ("float16", "float32", "float64")
OPERATIONS = row_operations()


@pytest.fixture(autouse=True)
def _native() -> Iterator[None]:
    with softargmax.using("native"):
        yield


@pytest.fixture
def threads() -> Iterator[None]:
    """Restore the number of threads."""
    yield
    softargmax.set_num_threads(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_batch_size_and_position(name: str, dtype: str) -> None:
    """A row has the same bits alone, in batches of 7, 1100 or 2100 rows, and in a batch with another order.

    Kernels process 16 rows of up to 64 scores at a time, one row per lane. If the rows have 16 scores or more, the
    largest batches have more than 2^15 scores, so kernels use threads. More rows would take 25 s longer under the
    sanitizers.
    """
    operation = OPERATIONS[name]
    for n in (1, 7, 16, 20, 33, 49, 64, 65, 200) if dtype == "float32" else (1, 7, 33, 200):
        z = scores((2100 if n < 33 else 1100, n), dtype)
        whole = operation(z)
        order = np.random.default_rng(1).permutation(z.shape[0])
        assert same_bits(operation(z[order]), whole[order]), n
        for i in (0, 1, 2, 3, 4, 5, 600, z.shape[0] - 1):
            assert same_bits(operation(z[i : i + 1]), whole[i : i + 1]), (n, i)
        for i in (0, 1001, z.shape[0] - 7):
            assert same_bits(operation(z[i : i + 7]), whole[i : i + 7]), (n, i)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_batch_of_long_rows(name: str, dtype: str) -> None:
    """Rows of about one block (4096 scores), and longer rows, have the same bits alone and in a batch."""
    operation = OPERATIONS[name]
    for n in (4095, 4096, 4097, 20_001):
        z = scores((9, n), dtype)
        whole = operation(z)
        for i in (0, 1, 4, 8):
            assert same_bits(operation(z[i : i + 1]), whole[i : i + 1]), (n, i)


def layouts(z: np.ndarray) -> dict[str, np.ndarray]:
    """Return the same matrix at other addresses and with other strides."""
    rows, n = z.shape
    wide = np.full((rows, n + 13), -77, z.dtype)
    wide[:, 5 : 5 + n] = z
    sparse = np.full((rows * 2, n * 3), 99, z.dtype)
    sparse[::2, 1::3] = z
    raw = np.zeros(z.nbytes + 64, np.uint8)
    shifted = raw[z.itemsize * 3 : z.itemsize * 3 + z.nbytes].view(z.dtype).reshape(z.shape)
    shifted[...] = z
    unaligned = raw.copy()[1 : 1 + z.nbytes].view(z.dtype).reshape(z.shape)  # not aligned to the element size
    unaligned[...] = z
    return {
        "columns of a wider matrix": wide[:, 5 : 5 + n],
        "every third column": sparse[::2, 1::3],
        "axis 0": np.asfortranarray(z),
        "rows backwards": z[::-1].copy()[::-1],
        "columns backwards": z[:, ::-1].copy()[:, ::-1],
        "shifted by 3 elements": shifted,
        "unaligned": unaligned,
        "read-only": np.frombuffer(z.tobytes(), z.dtype).reshape(z.shape),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_strides(name: str, dtype: str) -> None:
    operation = OPERATIONS[name]
    for shape in ((5, 7), (40, 100), (3, 9001)):
        z = scores(shape, dtype)
        whole = operation(z)
        for layout, other in layouts(z).items():
            assert same_bits(operation(other), whole), (shape, layout)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "sparsemax"])
def test_bfloat16_of_numpy_is_read_and_written_in_place(name: str) -> None:
    """Results of bfloat16 arrays of any layout are those of float32, rounded. Only elements of `out` are written.

    The buffer protocol has no bfloat16, so kernels receive the bits of the array.
    """
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    operation = getattr(softargmax, name)
    for shape in ((5, 7), (40, 100), (3, 9001)):
        z = scores(shape, "float32").astype(bfloat16)
        whole = operation(z.astype(np.float32)).astype(bfloat16)
        for layout, other in layouts(z).items():
            found = operation(other)
            assert found.dtype == bfloat16
            assert np.array_equal(found.astype(np.float32), whole.astype(np.float32), equal_nan=True), (shape, layout)
            if layout == "unaligned":
                with pytest.raises(
                    ValueError, match="out: expected an aligned array, got one that is not aligned to its type"
                ):
                    operation(z, out=other)
            elif other.flags.writeable:
                around = other if other.base is None else other.base
                before = around.copy()
                assert operation(z, out=other) is other
                assert np.array_equal(other.astype(np.float32), whole.astype(np.float32), equal_nan=True)
                other[...] = z
                assert around.tobytes() == before.tobytes(), (shape, layout)  # nothing around `out` was written


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("axis", [0, 1])
def test_results_written_past_the_caches(axis: int, dtype: str) -> None:
    """Rows of a large result, which some processors write past the caches, have the same bits as in a small call."""
    pitch = 9280 // np.dtype(dtype).itemsize  # 145 cache lines; 36 MiB in all
    z = scores((4096, pitch - 11), dtype)
    rows = np.moveaxis(z, axis, 1)[-140:]
    expected = softargmax.softmax(np.ascontiguousarray(rows))
    memory = np.empty(4096 * pitch + 64, dtype)
    line = -memory.ctypes.data % 64 // memory.itemsize
    for start in (line, line + 1):  # at the beginning of a cache line, and one number later
        memory[:] = 7
        whole = memory[start : start + 4096 * pitch].reshape(4096, pitch)
        out = whole[:, :-11]
        softargmax.softmax(z, axis=axis, out=out)
        assert same_bits(np.moveaxis(out, axis, 1)[-140:], expected)
        assert (whole[:, -11:] == 7).all()
        assert (memory[:start] == 7).all()


def test_the_comparison_can_fail() -> None:
    """The comparison detects that the bits of a naive softmax depend on the layout.

    NumPy sums along a contiguous axis in another order than across it.
    """

    def naive(z: np.ndarray) -> np.ndarray:
        e = np.exp(z - z.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    z = np.random.default_rng(0).standard_normal((40, 1000), np.float32)
    assert any(not same_bits(naive(other), naive(z)) for other in layouts(z).values())
    assert not same_bits(np.zeros(3), -np.zeros(3))
    assert not same_bits(np.zeros(3), np.zeros(3, np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_axes(dtype: str) -> None:
    """Rows have the same bits along every axis, and along two axes at once."""
    z = scores((6, 5, 130), dtype)
    for name in ("softmax", "log_softmax", "logsumexp", "sparsemax", "entmax"):
        operation = getattr(softargmax, name)
        whole = operation(z)
        for axis in (0, 1, 2):
            moved = operation(np.moveaxis(z, -1, axis), axis=axis)
            assert same_bits(np.moveaxis(moved, axis, -1) if name != "logsumexp" else moved, whole), (name, axis)
            copied = operation(np.moveaxis(z, -1, axis).copy(), axis=axis)
            assert same_bits(np.moveaxis(copied, axis, -1) if name != "logsumexp" else copied, whole), (name, axis)
        flat = operation(z.reshape(6, 650))
        pair = operation(z, axis=(1, 2))
        assert same_bits(pair.reshape(flat.shape), flat), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_out(dtype: str) -> None:
    """Results have the same bits if they are written to an array of any layout, or in place."""
    for rows, n in ((20, 333), (40, 33)):
        z = scores((rows, n), dtype)
        for operation in (softargmax.softmax, softargmax.log_softmax, softargmax.sparsemax, softargmax.entmax):
            whole = operation(z)
            strided = np.empty((2 * rows, 3 * n), dtype)[::2, ::3]
            for out in (np.empty_like(z), np.empty((n, rows), dtype).T, strided, np.empty_like(z)[::-1]):
                assert operation(z, out=out) is out
                assert same_bits(out, whole)
            own = z.copy()
            operation(own, out=own)
            assert same_bits(own, whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.usefixtures("threads")
def test_threads(name: str, dtype: str) -> None:
    """One, two and three threads give the same bits.

    The test uses many short rows, a few long rows (threads split them by blocks), and axis 0.
    """
    operation = OPERATIONS[name]
    for shape in ((2, 50_001), (1100, 64), (1100, 65)):
        z = scores(shape, dtype)
        results = []
        for count in (1, 2, 3):
            softargmax.set_num_threads(count)
            results.append((operation(z), operation(np.asfortranarray(z))))
        for contiguous, axis0 in results:
            assert same_bits(contiguous, results[0][0]), shape
            assert same_bits(axis0, results[0][0]), shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("threads")
def test_softmax_of_several_blocks(dtype: str) -> None:
    """A row has the same bits if one thread computes it and if several threads split it by blocks.

    The rows have blocks outside the support, shifted scores, infinities or NaN. The longest rows are just below and
    just above the length up to which one thread stores terms (`kStoredBytes` in softmax_row.hpp).
    """
    inf, nan, cut, n = np.inf, np.nan, slice(4096, 8192), 20_001
    mask = np.arange(n) % 4096 < 4000
    mask[cut] = False

    def results(z: np.ndarray) -> list[np.ndarray]:
        p, lse = softargmax.softmax_with_lse(z)
        in_place = z.copy()
        softargmax.softmax(in_place, out=in_place)
        per_row = softargmax.softmax(z, temperature=np.array([1.0, 2.0]))
        return [p, lse, in_place, per_row, softargmax.softmax(z, where=mask), softargmax.softmax(z + 5000)]

    for place, value in (
        ((0, 5), 1.5),
        ((0, cut), -inf),
        ((0, slice(None)), -inf),
        ((0, n - 1), 300.0),
        ((0, 3), inf),
        ((1, 9000), nan),
        ((1, cut), nan),
    ):
        z = scores((2, n), dtype)
        z[place] = value
        softargmax.set_num_threads(1)
        one = results(z)
        softargmax.set_num_threads(3)
        for alone, split in zip(one, results(z), strict=True):
            assert same_bits(alone, split), (place, value)
    for n in (32_768, 32_769, 65_536, 65_537):
        z = scores((2, n), dtype)
        softargmax.set_num_threads(1)
        whole = softargmax.softmax(z)
        softargmax.set_num_threads(3)
        assert same_bits(whole, softargmax.softmax(z)), n


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("threads")
def test_segments(dtype: str) -> None:
    """A segment has the same bits as a row with its scores, at any position and with any number of threads."""
    z = scores((90_000,), dtype)
    softargmax.set_num_threads(1)
    one = segments(z)
    softargmax.set_num_threads(2)
    for name, result in segments(z).items():
        assert same_bits(result, one[name]), name
    offsets = np.array([0, 5, 5, 5000, 30_001, 90_000])
    p, lse = softargmax.segment_softmax(z, offsets), softargmax.segment_logsumexp(z, offsets)
    for i, (a, b) in enumerate(itertools.pairwise(offsets)):
        assert same_bits(p[a:b], softargmax.softmax(z[a:b]))
        assert same_bits(lse[i], softargmax.logsumexp(z[a:b]))
    heads = scores((700, 3), dtype)
    found = softargmax.segment_softmax(heads, [0, 9, 700])
    for h in range(3):
        assert same_bits(found[:, h], softargmax.segment_softmax(heads[:, h].copy(), [0, 9, 700]))


WITH_TEMPERATURE = [(name, {"temperature": 0.3}) for name in ("softmax", "log_softmax", "logsumexp")]


@pytest.mark.parametrize("scale", [1.0, 1e20, 1e35])
def test_short_segments_of_every_kind(scale: float) -> None:
    """A short segment gives the same bits as its own call, although kernels process 16 similar segments at a time."""
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 80, 900)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    z = rng.standard_normal(offsets[-1]).astype(np.float32) * np.repeat(rng.choice([1, 9, 300], 900), lengths)
    z = (z * np.repeat(rng.choice([1, scale], 900), lengths)).astype(np.float32)
    for special in (np.inf, -np.inf, np.nan, 40.0):
        z[rng.integers(0, len(z), 40)] = special
    for name, options in (("softmax", {}), ("log_softmax", {}), ("logsumexp", {}), *WITH_TEMPERATURE):
        found = getattr(softargmax, f"segment_{name}")(z, offsets, **options)
        for i, (a, b) in enumerate(itertools.pairwise(offsets)):
            alone = getattr(softargmax, name)(z[a:b], **options)
            assert same_bits(found[i] if name == "logsumexp" else found[a:b], alone), (name, i)
    torch = pytest.importorskip("torch")
    both = softargmax.segment_softmax(torch.from_numpy(z).requires_grad_(), torch.from_numpy(offsets))
    assert same_bits(both.detach().numpy(), softargmax.segment_softmax(z, offsets))


def test_torch_and_numpy_share_the_bits() -> None:
    torch = pytest.importorskip("torch")
    for dtype in DTYPES:
        z = scores((30, 501), dtype)
        for name in ("softmax", "log_softmax", "logsumexp", "sparsemax", "entmax"):
            assert same_bits(getattr(softargmax, name)(torch.from_numpy(z)).numpy(), getattr(softargmax, name)(z)), name
    z = torch.from_numpy(scores((30, 501), "float32")).bfloat16()
    for strided in (z.T.contiguous().T, torch.cat([z, z], 1)[:, :501]):
        assert torch.equal(softargmax.softmax(strided).view(torch.int16), softargmax.softmax(z).view(torch.int16))


def test_flushing_subnormals_in_torch_changes_nothing() -> None:
    """torch.set_flush_denormal flushes subnormals in the calling thread, but does not change results of the kernels."""
    torch = pytest.importorskip("torch")
    z = np.tile(np.linspace(-110, 0, 10_000, dtype=np.float32), (4, 1))
    expected = softargmax.softmax(z)
    assert ((expected > 0) & (expected < np.finfo(np.float32).tiny)).any()
    if not torch.set_flush_denormal(True):
        pytest.skip("no flushing on this machine")
    try:
        found = softargmax.softmax(z)
    finally:
        torch.set_flush_denormal(False)
    assert same_bits(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_streams(name: str, dtype: str, tmp_path: Path) -> None:
    """A file read in windows, and a sequence or iterator of arrays of any length, give the same bits as one array."""
    stream, path, target = getattr(softargmax.stream, name), tmp_path / "z.npy", tmp_path / "p.npy"
    for shape in ((3, 300_001), (150_001, 4)):
        z = scores(shape, dtype)
        np.save(path, z)
        for axis in (-1, 0, None):
            whole = getattr(softargmax, name)(z, axis=axis)
            for memory in (1 << 20, (1 << 20) + 77_777):
                assert same_bits(np.asarray(stream(path, axis=axis, memory=memory)), whole), (shape, axis, memory)
            if name != "logsumexp":
                stream(path, target, axis=axis, memory=1 << 20)
                assert same_bits(np.load(target), whole), (shape, axis)
    z = scores((3, 30_001), dtype)
    whole = getattr(softargmax, name)(z)
    pieces = np.split(z, [0, 1, 7, 4095, 4096, 4100, 20_001], axis=1)
    assert same_bits(np.asarray(stream(pieces, axis=-1)), whole)
    if name == "logsumexp":
        assert same_bits(np.asarray(stream(iter(pieces), axis=-1)), whole)
