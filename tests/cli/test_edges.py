"""Edge cases of files: invalid targets, empty arrays, comments, closed standard input."""

import io
import subprocess
import sys

import numpy as np
import pytest

import softargmax


@pytest.mark.parametrize("name", ["m.csv", "m.tsv", "m.txt"])
def test_text_file_cannot_be_its_own_target(run, tmp_path, name):
    (tmp_path / name).write_text("1\n2\n")
    (tmp_path / "link.csv").symlink_to(name)
    for target in (name, "link.csv"):
        done = run(name, "-o", target)
        assert (done.code, done.err) == (2, f"softargmax: {target}: expected a file other than the source\n")
    assert (tmp_path / name).read_text() == "1\n2\n"


def test_folder_cannot_be_a_target(run, tmp_path):
    for name in ("p.npy", "p.csv"):
        (tmp_path / name).mkdir()
        assert run("1", "2", "-o", name).err == (f"softargmax: {name}: expected a regular file or a new name\n")


def test_comments_after_numbers(run, tmp_path):
    (tmp_path / "z.txt").write_text("1 2 3 # c\n  # only\n4 5 6#d\n")
    assert run("z.txt", "--json").json()["values"] == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (2, 0, 3), (0,)])
@pytest.mark.parametrize("terminal", [False, True])
def test_empty_arrays(run, tmp_path, monkeypatch, shape, terminal):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    np.save(tmp_path / "z.npy", np.zeros(shape))
    for words in ([], ["--log"], ["--json"], ["-o", "p.csv"], ["-o", "p.npy"]):
        done = run("z.npy", *words)
        assert (done.code, done.err) == (0, "")
    assert np.load(tmp_path / "p.npy").shape == shape


@pytest.mark.parametrize(
    ("array", "cut", "message"),
    [
        (np.zeros(9), 8, "is not a valid .npy file"),
        (np.array([{}]), 0, "is not a valid .npy file"),
        (np.zeros(9), 100, "is not a valid .npy file"),
        (np.zeros(9, complex), 0, "complex128"),
        (np.array(["a"]), 0, "<U1"),
    ],
)
def test_errors_name_standard_input(run, array, cut, message):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    data = file.getvalue()
    done = run("-", stdin=data[: len(data) - cut])
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert done.err.startswith("softargmax: standard input")
    assert message in done.err


@pytest.mark.parametrize(
    ("dtype", "requested"), [("f4", "f64"), ("f4", None), ("f2", "f16"), ("f2", "f64"), ("f8", "f32")]
)
def test_printed_logsumexp_has_the_requested_dtype(run, tmp_path, dtype, requested):
    z = np.random.default_rng(0).normal(0, 4, (3, 50)).astype(dtype)
    np.save(tmp_path / "z.npy", z)
    found = run("z.npy", "--json", *(["--dtype", requested] if requested else [])).json()["logsumexp"]
    wide = {"f64": "f8"}.get(requested, "f4")
    expected = softargmax.logsumexp(z, dtype=wide)
    assert found == [float(str(value)) for value in expected]


def test_closed_standard_input(tmp_path):
    line = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "softargmax.cli", "-"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("softargmax: standard input is closed")


@pytest.mark.parametrize("words", [["1", "2"], ["--json", "1"], ["info"]])
def test_closed_standard_output(words):
    line = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "softargmax.cli", *words]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    message = "standard output is closed; redirect it to a file, or to /dev/null to discard the output"
    assert done.stderr == f"softargmax: {message}\n"
