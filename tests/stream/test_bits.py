"""Streams of files, arrays, lists and pieces of any length give the same bits as the functions in memory."""

import itertools
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import softargmax
from softargmax import stream
from softargmax.stream import check_options as open_module
from softargmax.stream import native_fold

MIB = 1 << 20
NAMES = ("softmax", "log_softmax")


def scores(shape, dtype="f4", seed=0):
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind != "f":
        return rng.integers(0, 30, shape).astype(dtype)
    return np.where(rng.random(shape) < 0.01, -np.inf, 8 * rng.standard_normal(shape)).astype(dtype)


def same(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


def axes_of(ndim):
    some = [axes for k in range(1, ndim + 1) for axes in itertools.combinations(range(ndim), k)]
    return [None, -1, *range(ndim), *some] if ndim else [None, -1]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "<f8", ">f8", "i4", "u1", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (0,), (3, 0), (0, 3), (3, 4, 5), (2, 1, 3, 2)])
def test_small_files_along_every_axis(tmp_path, shape, order, dtype):
    z = np.asarray(scores(shape, dtype), order=order)
    np.save(tmp_path / "z.npy", z)
    for axis in axes_of(len(shape)):
        options = {"axis": axis, "temperature": 1.7}
        for name in NAMES:
            expected = getattr(softargmax, name)(z, **options)
            same(getattr(stream, name)(tmp_path / "z.npy", **options), expected)
            same(getattr(stream, name)(str(tmp_path / "z.npy"), tmp_path / "p.npy", **options), expected)
            same(np.load(tmp_path / "p.npy"), expected)
        for keepdims in (False, True):
            expected = softargmax.logsumexp(z, keepdims=keepdims, **options)
            same(stream.logsumexp(tmp_path / "z.npy", keepdims=keepdims, **options), expected)


# A window is a part of an array that is read as one piece (stream/windows.py). With 1 MiB of memory, a window has about
# 10^5 scores. Therefore these arrays are read in several windows, for all axes and both storage orders.
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i2"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3, 300_001), -1),
        ((300_001, 3), 0),
        ((2, 150_007, 3), 1),
        ((9_000, 100), 0),
        ((40, 9_000), 0),
        ((40, 9_000), 1),
        ((700_000,), None),
        ((3, 100_003, 2), (0, 1)),
        ((3, 5_003, 40), (0, 2)),
        ((5_003, 3, 41), (0, 2)),
        ((2, 150_007, 3), None),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_windows(tmp_path, shape, axis, order, dtype):
    z = np.asarray(scores(shape, dtype), order=order)
    np.save(tmp_path / "z.npy", z)
    options = {"axis": axis, "base": 3.0, "temperature": 2.5}
    for name in NAMES:
        found = getattr(stream, name)(tmp_path / "z.npy", tmp_path / "p.npy", memory=MIB, **options)
        same(found, getattr(softargmax, name)(z, **options))
    same(stream.logsumexp(tmp_path / "z.npy", memory=MIB, **options), softargmax.logsumexp(z, **options))


@pytest.mark.parametrize("temperature", [0.0, -0.0, np.inf, -3.0, 1e-3, 1e300])
def test_temperatures_and_edges_in_windows(tmp_path, temperature):
    z = scores((6, 200_000), "f4")
    z[1] = -np.inf
    z[2, 150_000] = np.inf
    z[3, [5, 199_999]] = np.inf
    z[4, 100_000] = np.nan
    np.save(tmp_path / "z.npy", z)
    for name in NAMES:
        expected = getattr(softargmax, name)(z, temperature=temperature)
        same(getattr(stream, name)(tmp_path / "z.npy", temperature=temperature, memory=MIB), expected)
    expected = softargmax.logsumexp(z, temperature=temperature)
    same(stream.logsumexp(tmp_path / "z.npy", temperature=temperature, memory=MIB), expected)


@pytest.mark.parametrize("temperature", [np.inf, 1.0, 0.0, -1.0])
def test_rows_of_one_score_and_of_none(tmp_path, temperature):
    z = np.full((4, 200_000), -np.inf if temperature >= 0 else np.inf, "f4")
    z[0, 7] = z[1, 150_000] = 2.5
    z[2, 199_999] = -z[3, 0]
    np.save(tmp_path / "z.npy", z)
    expected = softargmax.logsumexp(z, temperature=temperature)
    same(stream.logsumexp(tmp_path / "z.npy", temperature=temperature, memory=MIB), expected)
    same(stream.logsumexp(np.split(z, [5, 9_000], 1), temperature=temperature), expected)


def test_dtype_of_the_result(tmp_path):
    z = scores((3, 200_000), "f4")
    np.save(tmp_path / "z.npy", z)
    for dtype in ("float16", np.float64, "f8"):
        same(stream.softmax(tmp_path / "z.npy", dtype=dtype, memory=MIB), softargmax.softmax(z, dtype=dtype))
        same(stream.logsumexp(tmp_path / "z.npy", dtype=dtype), softargmax.logsumexp(z, dtype=dtype))
    assert stream.logsumexp(z.astype("f2")).dtype == np.float32


def test_the_target_keeps_the_storage_order(tmp_path):
    z = np.asfortranarray(scores((40, 50)))
    np.save(tmp_path / "z.npy", z)
    assert stream.softmax(tmp_path / "z.npy", tmp_path / "p.npy").flags.f_contiguous
    assert stream.softmax(z).flags.f_contiguous


@pytest.mark.slow
@settings(deadline=None, max_examples=120)
@given(
    small=st.lists(st.integers(1, 6), max_size=3),
    long=st.integers(1, 14_000),
    place=st.integers(0, 3),
    order=st.sampled_from("CF"),
    memory=st.sampled_from([1, 1 << 12, 1 << 15, 1 << 17, 1 << 19]),
    data=st.data(),
)
def test_any_shape_any_axes_any_memory(tmp_path_factory, small, long, place, order, memory, data):
    shape = [*small[:place], long, *small[place:]]
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    z = np.asarray(scores(shape, data.draw(st.sampled_from(["f2", "f4", "f8"]))), order=order)
    folder = tmp_path_factory.mktemp("any")
    np.save(folder / "z.npy", z)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_module, "MINIMUM_MEMORY", 1)  # allow far less memory than users can request
        found = stream.softmax(folder / "z.npy", folder / "p.npy", axis=axes, memory=memory)
        same(found, softargmax.softmax(z, axis=axes))
        same(stream.logsumexp(folder / "z.npy", axis=axes, memory=memory), softargmax.logsumexp(z, axis=axes))
    del found
    shutil.rmtree(folder)


def test_arrays_memory_maps_and_lists(tmp_path):
    z = scores((4, 300_000))
    np.save(tmp_path / "z.npy", z)
    expected = softargmax.softmax(z, axis=1)
    sources = [
        z,
        np.load(tmp_path / "z.npy", mmap_mode="r"),
        np.load(tmp_path / "z.npy", mmap_mode="c"),
        np.repeat(z, 2, axis=1)[:, ::2],
        z[::-1][::-1],
        np.asfortranarray(z),
        [z[:, :17], z[:, 17:17], z[:, 17:250_000], z[:, 250_000:]],
        (np.load(tmp_path / "z.npy", mmap_mode="r"),),
    ]
    for source in sources:
        same(stream.softmax(source, axis=1, memory=MIB), expected)
        same(stream.softmax(source, tmp_path / "p.npy", axis=1, memory=MIB), expected)
        same(stream.logsumexp(source, axis=1, memory=MIB), softargmax.logsumexp(z, axis=1))
    same(stream.softmax([z[:1], z[1:]], axis=0), softargmax.softmax(z, axis=0))


def test_changes_of_a_copy_on_write_map_are_read(tmp_path):
    z = scores((4, 300_000))
    np.save(tmp_path / "z.npy", z)
    changed = np.load(tmp_path / "z.npy", mmap_mode="c")
    changed[:, 7] = 50.0
    same(stream.softmax(changed, memory=MIB), softargmax.softmax(np.array(changed)))
    assert (changed[:, 7] == 50.0).all()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.data_too_large])
@given(
    cuts=st.lists(st.integers(0, 30_000), max_size=12),
    dtype=st.sampled_from(["f2", "f4", "f8", "i4"]),
    temperature=st.sampled_from([1.0, 0.3, -2.0, 0.0]),
    keepdims=st.booleans(),
)
def test_pieces_of_any_length(cuts, dtype, temperature, keepdims):
    z = scores(30_000, dtype, seed=len(cuts))
    pieces = (z[a:b] for a, b in itertools.pairwise([0, *sorted(cuts), z.size]))
    found = stream.logsumexp(pieces, temperature=temperature, keepdims=keepdims)
    same(found, softargmax.logsumexp(z, temperature=temperature, keepdims=keepdims))


@settings(deadline=None, max_examples=25)
@given(cuts=st.lists(st.integers(0, 9_000), max_size=6), axis=st.sampled_from([0, 1, 2, -1, -2, -3]))
def test_pieces_along_every_axis(cuts, axis):
    shape = [2, 3, 2]
    shape[axis] = 9_000
    z = scores(shape, "f4")
    pieces = np.split(z, sorted(cuts), axis)
    same(stream.logsumexp(iter(pieces), axis=axis), softargmax.logsumexp(z, axis=axis))
    same(stream.softmax(pieces, axis=axis), softargmax.softmax(z, axis=axis))


def test_a_stream_of_lists_and_of_one_empty_piece():
    same(stream.logsumexp(iter([[1, 2], [3]])), softargmax.logsumexp([1, 2, 3]))
    same(stream.logsumexp(iter([np.empty((2, 0))])), softargmax.logsumexp(np.empty((2, 0))))


def test_streams_under_the_reference_implementation(tmp_path):
    z = scores((3, 200_000))
    np.save(tmp_path / "z.npy", z)
    with softargmax.using("reference"):
        same(stream.softmax(tmp_path / "z.npy", memory=MIB), softargmax.softmax(z))
        same(stream.logsumexp(iter(np.split(z, [5, 100], 1))), softargmax.logsumexp(z))


def test_progress_of_pieces():
    reports = []
    stream.logsumexp([np.zeros(3), np.zeros(5)], progress=lambda *bytes_: reports.append(bytes_))
    assert reports == [(24, 24), (64, 64)]


def test_progress_reports_bytes_read(tmp_path):
    z = scores((3, 200_000))
    np.save(tmp_path / "z.npy", z)
    for memory, name in ((MIB, "softmax"), (64 * MIB, "softmax"), (MIB, "logsumexp")):
        reports = []
        getattr(stream, name)(tmp_path / "z.npy", memory=memory, progress=lambda *bytes_, to=reports: to.append(bytes_))
        totals = {total for _, total in reports}
        assert len(totals) == 1
        assert reports == sorted(reports)
        assert reports[-1][0] == reports[-1][1] in (z.nbytes, 2 * z.nbytes)


def test_blocks_are_those_of_the_kernels():
    native = pytest.importorskip("softargmax.core.native")
    assert native.BLOCK == native_fold.BLOCK
