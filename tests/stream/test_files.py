"""Invalid files are refused before any work, and a target is written completely or not at all."""

import errno
import inspect
import os
import re

import numpy as np
import pytest

import softargmax
from softargmax import stream
from softargmax.stream import atomic_file


def header(descr="'<f4'", fortran="False", shape="(3,)", version=b"\x01\x00"):
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text


BAD = {
    "empty": (b"", ValueError, "not a valid .npy file"),
    "text": (b"1,2,3\n", ValueError, "not a valid .npy file"),
    "cut in the magic": (b"\x93NUM", ValueError, "not a valid .npy file"),
    "cut in the header": (header()[:20], ValueError, "not a valid .npy file"),
    "no literal": (header(descr="exec('1')"), ValueError, "not a valid .npy file"),
    "nested": (header(shape="(" * 3000), ValueError, "not a valid .npy file"),
    "huge": (header(shape="(3,)" + " " * 50_000), ValueError, "not a valid .npy file"),
    "no such dtype": (header(descr="'<f5'"), ValueError, "not a valid .npy file"),
    "shape of words": (header(shape="('a',)"), ValueError, "not a valid .npy file"),
    "negative": (header(shape="(-1, 3)") + bytes(64), ValueError, "negative size"),
    "version": (header(version=b"\x09\x00"), ValueError, "not a valid .npy file"),
    "truncated": (header(shape="(300,)") + bytes(40), ValueError, "truncated: its header promises 1200 bytes"),
    "no data": (header(shape=f"({10**15},)"), ValueError, "truncated"),
    "objects": (header(descr="'|O'") + b"\x80\x04cos\nsystem\n", TypeError, "never unpickled"),
    "strings": (header(descr="'<U4'") + bytes(64), TypeError, "an integer or bool, got <U4"),
    "complex": (header(descr="'<c8'") + bytes(64), TypeError, "an integer or bool, got complex64"),
    "long": (header(descr="'<f16'") + bytes(64), TypeError, "float128"),
    "structure": (header(descr="[('a', '<f4')]") + bytes(64), TypeError, "dtype"),
    "dates": (header(descr="'<M8[s]'") + bytes(64), TypeError, "an integer or bool, got datetime64"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(tmp_path, old, case):
    data, error, words = BAD[case]
    (tmp_path / "z.npy").write_bytes(data)
    for call in (lambda z: stream.softmax(z, old), lambda z: stream.log_softmax(z, old), stream.logsumexp):
        with pytest.raises(error, match=words) as caught:
            call(tmp_path / "z.npy")
        assert "z.npy" in str(caught.value)
    assert old.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.npy", "z.npy"]


def test_object_arrays_in_a_file_are_never_unpickled(tmp_path):
    np.save(tmp_path / "z.npy", np.array([print, None]), allow_pickle=True)
    with pytest.raises(TypeError, match="never unpickled"):
        stream.softmax(tmp_path / "z.npy")


def test_a_file_that_shrinks_while_it_is_read(tmp_path, source, old):
    def cut(done, total):
        os.truncate(source, 1 << 20)

    with pytest.raises(ValueError, match="truncated"):
        stream.softmax(source, old, memory=1 << 20, progress=cut)
    assert old.read_bytes() == b"old"


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.npy"):
        stream.softmax(tmp_path / "none.npy")
    with pytest.raises(IsADirectoryError):
        stream.logsumexp(tmp_path)


def test_wrong_arguments(tmp_path, source, old):
    with pytest.raises(
        TypeError,
        match=r"source: expected a source that can be read twice .*, got (list_iterator|generator); logsumexp takes",
    ):
        stream.softmax(iter([np.zeros(3)]))
    with pytest.raises(
        TypeError,
        match=r"source: expected a source that can be read twice .*, got (list_iterator|generator); logsumexp takes",
    ):
        stream.log_softmax(z for z in [np.zeros(3)])
    with pytest.raises(ValueError, match="target: expected another file than the source"):
        stream.softmax(source, source)
    with pytest.raises(ValueError, match="target: expected another file than the source"):
        stream.softmax(np.load(source, mmap_mode="r"), str(source))
    with pytest.raises(ValueError, match="target: expected another file than the source"):
        stream.softmax([np.load(source, mmap_mode="r")], source)
    with pytest.raises(ValueError, match="axis: expected from -2 to 1, got 2, which is out of range for 2 dimensions"):
        stream.softmax(source, old, axis=2)
    with pytest.raises(ValueError, match=r"axis: expected each axis once, got \(0, 0\)"):
        stream.softmax(source, old, axis=(0, 0))
    with pytest.raises(ValueError, match="base: expected a finite number above 0, got -1"):
        stream.softmax(source, old, base=-1)
    with pytest.raises(ValueError, match="temperature: expected any number except NaN, got nan"):
        stream.softmax(source, old, temperature=float("nan"))
    with pytest.raises(TypeError, match="temperature"):
        stream.softmax(source, old, temperature=np.ones(40))
    with pytest.raises(ValueError, match=r"memory: expected 1048576 \(1 MiB\) or more, got 100 bytes"):
        stream.softmax(source, old, memory=100)
    with pytest.raises(TypeError, match="memory"):
        stream.softmax(source, old, memory=1e9)
    with pytest.raises(TypeError, match="dtype"):
        stream.softmax(source, old, dtype="int32")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with pytest.raises(TypeError, match=r"dtype: expected float16, float32 or float64 for a .npy file, got bfloat16"):
        stream.softmax(source, old, dtype=ml_dtypes.bfloat16)
    for masked in (np.ma.masked_array([1.0], [True]), [np.ma.masked_array([1.0], [True])]):
        for call in (stream.softmax, stream.logsumexp):
            with pytest.raises(TypeError, match=r"source(: piece 0)?: a masked array"):
                call(masked)
    with pytest.raises(TypeError, match="complex"):
        stream.softmax(np.ones(3, complex))
    with pytest.raises(TypeError, match="never unpickled"):
        stream.softmax(np.array([object()]))
    with pytest.raises(ValueError, match="target: expected a regular file or a new name"):
        stream.softmax(source, tmp_path)
    assert old.read_bytes() == b"old"


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_errors_name_the_argument_before_any_work(source, old, name):
    call = getattr(stream, name)
    with pytest.raises(TypeError, match=r"source: expected .*, got int"):
        call(5)
    for form in (source, np.zeros(3), [np.zeros(3)]):
        with pytest.raises(TypeError, match=r"progress: expected .*, got 5"):
            call(form, progress=5)
        with pytest.raises(TypeError, match=r"memory: expected .*, got 'x'"):
            call(form, memory="x")
        with pytest.raises(ValueError, match=r"memory: expected .*, got 7 bytes"):
            call(form, memory=7)
        if name != "logsumexp":
            with pytest.raises(TypeError, match=r"target: expected .*, got 5"):
                call(form, 5)


def test_an_iterator_is_not_read_before_the_checks():
    pieces = iter([np.zeros(3)])
    for wrong in ({"memory": "x"}, {"memory": 7}, {"progress": 5}, {"axis": None}, {"base": -1}):
        with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
            stream.logsumexp(pieces, **wrong)
    assert stream.logsumexp(pieces) == softargmax.logsumexp(np.zeros(3))


def test_numpy_integers_are_accepted(source):
    options = {"axis": np.int64(0), "memory": np.int64(1 << 20)}
    for form in (source, [np.ones((2, 3)), np.zeros((4, 3))]):
        assert stream.softmax(form, **options).tobytes() == stream.softmax(form, axis=0).tobytes()
        assert stream.logsumexp(form, **options).tobytes() == stream.logsumexp(form, axis=0).tobytes()


@pytest.mark.parametrize("name", stream.__all__)
def test_docstrings_list_every_parameter(name):
    function = getattr(stream, name)
    _, _, section = inspect.getdoc(function).partition("Parameters\n")
    section = section.partition("Examples\n")[0]
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^(\w+, )*{parameter}\b", section, re.MULTILINE), parameter


def test_wrong_pieces():
    with pytest.raises(ValueError, match="source: expected at least one array, got an empty iterable"):
        stream.logsumexp(iter([]))
    with pytest.raises(ValueError, match="empty sequence"):
        stream.softmax([])
    with pytest.raises(ValueError, match="source: expected arrays of at least one dimension, got a number as piece 0"):
        stream.logsumexp([1.0, 2.0])
    with pytest.raises(
        ValueError,
        match=r"source: expected pieces whose shapes differ only along axis .*"
        r"got shape \(2, 3\) of piece 1 and \(3, 3\) of th",
    ):
        stream.logsumexp([np.zeros((3, 3)), np.zeros((2, 3))])
    with pytest.raises(TypeError, match="source: expected one dtype, got float32 of piece 1 and float64 of the first"):
        stream.logsumexp([np.zeros(3), np.zeros(3, "f4")])
    with pytest.raises(ValueError, match="axis: expected from -1 to 0, got 1, which is out of range for 1 dimensions"):
        stream.logsumexp([np.zeros(3)], axis=1)
    torch = pytest.importorskip("torch")
    for call in (stream.logsumexp, stream.softmax):
        with pytest.raises(TypeError, match=r"source: expected .*, got Tensor"):
            call(torch.zeros(2, 3))
        with pytest.raises(TypeError, match=r"source: piece 0: expected a NumPy array, got Tensor"):
            call([torch.zeros(2, 3)])
    for axis in (None, (0, 1)):
        with pytest.raises(TypeError, match="one integer"):
            stream.logsumexp([np.zeros((3, 3))], axis=axis)


def test_an_error_midway_leaves_the_old_target(tmp_path, source, old):
    class StopError(Exception):
        pass

    def stop(done, total):
        raise StopError

    with pytest.raises(StopError):
        stream.softmax(source, old, memory=1 << 20, progress=stop)
    assert old.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.npy", "z.npy"]


def test_a_target_keeps_its_permissions_and_a_link_stays_a_link(tmp_path, source, old):
    old.chmod(0o640)
    link = tmp_path / "link.npy"
    link.symlink_to(old)
    p = stream.softmax(source, link)
    assert link.is_symlink()
    assert old.stat().st_mode & 0o777 == 0o640
    assert np.load(old).tobytes() == p.tobytes()
    mask = os.umask(0o027)
    try:
        stream.softmax(source, tmp_path / "new.npy")
    finally:
        os.umask(mask)
    assert (tmp_path / "new.npy").stat().st_mode & 0o777 == 0o640


def test_a_mapped_old_target_is_not_written_into(source, old):
    np.save(old, np.zeros(3))
    before = np.load(old, mmap_mode="r")
    stream.softmax(source, old)
    assert before.tolist() == [0, 0, 0]


@pytest.mark.parametrize("nameless", [True, False])
def test_whole_files_with_and_without_unnamed_files(tmp_path, monkeypatch, nameless):
    if not nameless:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    target = tmp_path / "notes.txt"
    with atomic_file.whole_file(target) as file:
        file.write(b"one")
        assert not target.exists()
        assert len(list(tmp_path.iterdir())) == (0 if nameless and hasattr(os, "O_TMPFILE") else 1)
    assert target.read_bytes() == b"one"
    with pytest.raises(TypeError), atomic_file.whole_file(target) as file:
        file.write("two")
    assert target.read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_file_system_without_unnamed_files(tmp_path, monkeypatch):
    real = os.open

    def refusing(path, flags, *rest):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    with atomic_file.whole_file(tmp_path / "notes.txt") as file:
        file.write(b"one")
    assert (tmp_path / "notes.txt").read_bytes() == b"one"


def test_a_disk_that_fills_midway(tmp_path, source, old, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        stream.softmax(source, old)
    assert caught.value.filename == str(old)
    assert old.read_bytes() == b"old"


@pytest.mark.parametrize("name", ["p.csv", "p.txt", "p"])
def test_only_a_npy_file_is_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for function in (stream.softmax, stream.log_softmax):
        with pytest.raises(ValueError, match=r"target: expected a name that ends in \.npy, the format written, got p"):
            function(np.zeros(3), name)
    assert not [*tmp_path.iterdir()]
