"""Input and output files: .npy of any size, text formats, standard input, and errors."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import softargmax

Z = np.array([[1.0, 2.5, -3.0], [0.0, -np.inf, 1e-3]])
TEXTS = {
    "z.csv": "1,2.5,-3\n0,-inf,1e-3\n",
    "z.tsv": "1\t2.5\t-3\n0\t-inf\t1e-3\n",
    "z.txt": "# scores\n1  2.5 -3\n\n0 -inf 1e-3",
    "quoted.csv": '"1", 2.5 ,"-3"\r\n0,-Infinity,0.001\r\n\r\n',
    "marked.csv": "\ufeff1,2.5,-3\n0,-inf,1e-3\n",
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("axis", ["-1", "0", "0,1", "all"])
def test_text_files_are_read(run, tmp_path, name, axis):
    (tmp_path / name).write_text(TEXTS[name], encoding="utf-8")
    done = run(name, "--axis", axis, "--json")
    assert done.code == 0
    expected = softargmax.softmax(Z, axis=None if axis in ("all", "0,1") else int(axis))
    assert np.array(done.json()["probabilities"]).tobytes() == expected.tobytes()
    assert done.json()["values"][1] == [0.0, "-inf", 1e-3]


@pytest.mark.parametrize("name", ["z.csv", "z.tsv", "z.txt"])
def test_standard_input(run, name):
    done = run("-", "--json", stdin=TEXTS[name].encode())
    assert np.array(done.json()["probabilities"]).tobytes() == softargmax.softmax(Z).tobytes()


def test_a_npy_file_on_standard_input(run, tmp_path):
    np.save(tmp_path / "z.npy", Z.astype("f4"))
    done = run("-", "-o", "p.npy", stdin=(tmp_path / "z.npy").read_bytes())
    assert done.code == 0
    assert np.load(tmp_path / "p.npy").tobytes() == softargmax.softmax(Z.astype("f4")).tobytes()


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".txt", ".npy"])
@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize("source", ["z.csv", "z.npy"])
def test_output_files_of_every_format(run, tmp_path, kind, dtype, source):
    (tmp_path / "z.csv").write_text(TEXTS["z.csv"])
    np.save(tmp_path / "z.npy", Z)
    done = run(source, "-o", f"p{kind}", "--dtype", dtype)
    assert (done.code, done.out, done.err) == (0, "", "")
    wide = {"f16": "float16", "f32": "float32", "f64": "float64"}[dtype]
    expected = softargmax.softmax(Z, dtype=wide)
    if kind == ".npy":
        found = np.load(tmp_path / "p.npy")
        assert found.dtype == wide
    else:
        found = np.loadtxt(tmp_path / f"p{kind}", delimiter={".csv": ",", ".tsv": "\t", ".txt": None}[kind]).astype(
            wide
        )
    assert found.tobytes() == expected.tobytes()  # reading the written text gives the same numbers


@pytest.mark.parametrize("text", ["1\n2\n-3\n", "1 2 -3\n", "1,2,-3"])
def test_one_column_or_one_row_is_a_vector(run, text):
    found = run("-", "--json", stdin=text.encode()).json()
    assert found["probabilities"] == softargmax.softmax([1.0, 2.0, -3.0]).tolist()


def test_table_in_a_pipe_is_plain(run, tmp_path):
    np.save(tmp_path / "z.npy", Z)
    rows = [[float(cell) for cell in line.split("\t")] for line in run("z.npy").out.splitlines()]
    assert np.array(rows).tobytes() == softargmax.softmax(Z).tobytes()


def test_a_table_on_a_terminal_is_a_summary(run, tmp_path, monkeypatch):
    np.save(tmp_path / "z.npy", np.tile(Z, (40, 1)))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    out = run("z.npy").out
    assert "80 rows of 3" in out
    assert "and 48 more rows" in out


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("log", [False, True])
def test_npy_to_npy(run, tmp_path, dtype, order, axis, log):
    z = np.random.default_rng(0).normal(0, 5, (50, 9_000)).astype(dtype, order=order)
    np.save(tmp_path / "z.npy", z)
    log_option = ["--log"] if log else []
    done = run("z.npy", "-o", "p.npy", "--axis", axis, "-t", "2", "--memory", "1M", "--json", *log_option)
    report = done.json()
    assert (report["output"], report["shape"]) == ("p.npy", [50, 9_000])
    expected = (softargmax.log_softmax if log else softargmax.softmax)(z, axis=axis, temperature=2.0)
    found = np.load(tmp_path / "p.npy")
    assert found.dtype == expected.dtype == report["dtype"]
    assert found.tobytes() == expected.tobytes()


WRONG = {
    "word.csv": (b"1,2,3\n4,x y,6\n", "word.csv, line 2, column 2: 'x y' is not a number"),
    "head.csv": (b"a,2\n1,2\n", "head.csv, line 1, column 1: 'a' is not a number (--columns"),
    "only.csv": (b"a,b\n", "only.csv: expected at least one number, got none"),
    "packed.csv": (b"\x1f\x8bno", "packed.csv is not a valid gzip file: "),
    "book.csv": (b"PK\x03\x04..", "book.csv is a workbook"),
    "gap.csv": (b"1,2\n\n3,\n", "gap.csv, line 3, column 2: empty"),
    "ragged.csv": (b"1,2\n3,4\n5\n", "ragged.csv, line 3: expected 2 values, like the first row, got 1"),
    "quote.csv": (b'1,"2\n3,4\n', "quote.csv, line 1: unexpected end of data"),
    "quotes.csv": (b'1,2\n3,"4"5\n', "quotes.csv, line 2: "),
    "python.csv": (b"1,2\n3,4_000\n", "python.csv, line 2, column 2: '4_000' is not a number"),
    "large.csv": (b"1,2\n3,-1e999\n", "large.csv, line 2, column 2: -1e999: too large for float64"),
    "word.tsv": (b"1\t2\n3\tno\n", "word.tsv, line 2, column 2: 'no' is not a number"),
    "word.txt": (b"# head\n1 2\n3 4,\n", "word.txt, line 3, column 2: '4,' is not a number"),
    "empty.csv": (b"\n\n", "empty.csv: expected at least one number, got none"),
    "latin.csv": (b"1,2\n3,\xe9\n", "latin.csv, line 2: byte 6 is not UTF-8 text"),
    "bad.npy": (b"1,2,3\n", "bad.npy is not a valid .npy file"),
    "cut.npy": (b"\x93NUMPY\x01\x00v\x00", "cut.npy is not a valid .npy file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_one_line_and_code_1(run, tmp_path, name):
    data, message = WRONG[name]
    (tmp_path / name).write_bytes(data)
    (tmp_path / "p.npy").write_bytes(b"old")
    done = run(name, "-o", "p.npy")
    assert done.code == 1
    assert done.err.startswith("softargmax: ")
    assert done.err.count("\n") == 1
    assert message in done.err
    assert (tmp_path / "p.npy").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["none.npy"], 1, "none.npy: No such file or directory"),
        (["none.csv"], 1, "none.csv: no such file"),
        (["nonsense"], 1, "nonsense: no such file, and not a number"),
        (["z.npy", "-o", "z.npy"], 2, "z.npy: expected a file other than the source"),
        (["z.npy", "-o", "none/p.npy"], 1, "none: No such file or directory"),
        (["z.npy", "-o", "none/p.csv"], 1, "none: No such file or directory"),
        (["z.npy", "-o", "p.npy", "--axis", "2"], 2, "axis: expected from -2 to 1, got 2"),
        (["z.npy", "-o", "p.npy", "--axis", "0,0"], 2, "--axis 0,0: expected each axis once"),
        (["objects.npy"], 1, "never unpickled"),
        (["z.json"], 2, "z.json: expected a name that ends in"),
        (["z.npy", "1"], 2, "'z.npy' is not a number"),
    ],
)
def test_wrong_use_and_failed_runs(run, tmp_path, words, code, message):
    np.save(tmp_path / "z.npy", Z)
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "z.json").write_text("[1]")
    done = run(*words)
    assert done.code == code
    assert message in done.err
    assert done.err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["objects.npy", "z.json", "z.npy"]


# --- separate processes -------------------------------------------------------------------------------------------


def test_a_pipeline(command):
    done = command("-", "--temperature", "2", input="1,2\n3,5\n")
    assert done.returncode == 0
    rows = [[float(cell) for cell in line.split("\t")] for line in done.stdout.splitlines()]
    assert rows == softargmax.softmax([[1.0, 2.0], [3.0, 5.0]], temperature=2.0).tolist()


def test_errors_have_no_traceback(command, tmp_path):
    (tmp_path / "z.csv").write_text("1,x\n")
    done = command("z.csv")
    assert (done.returncode, done.stdout) == (1, "")
    advice = "--columns selects columns, --header skips a header"
    assert done.stderr == f"softargmax: z.csv, line 1, column 2: 'x' is not a number ({advice})\n"
    done = command("1", "--axis", "7")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_closed_pipe_is_not_an_error(tmp_path):
    np.save(tmp_path / "z.npy", np.zeros((2_000, 200)))
    line = f"{sys.executable} -m softargmax.cli z.npy | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")  # noqa: PTH110
def test_full_disk_at_standard_output(command):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = command("1", "2", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_conversion_keeps_the_old_file(tmp_path, how):
    np.save(tmp_path / "z.npy", np.random.default_rng(0).standard_normal((64, 1 << 18), np.float32))
    (tmp_path / "p.npy").write_bytes(b"old")
    # The conversion waits after its first window (a part of the file), so that the signal arrives in the meantime.
    script = (
        "import signal, sys, time, softargmax.cli.render as show\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background processes ignore SIGINT
        "from contextlib import contextmanager\n"
        "@contextmanager\n"
        "def progress(what, quiet):\n"
        "    def tell(done, total):\n"
        "        print('window', flush=True); time.sleep(30)\n"
        "    yield tell\n"
        "show.progress = progress\n"
        "from softargmax.cli import main\n"
        "sys.exit(main(['z.npy', '-o', 'p.npy', '--memory', '1M']))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline() == "window\n"
        child.send_signal(how)
        _, err = child.communicate(timeout=30)
    if how == signal.SIGINT:
        assert child.returncode == 130
        assert err == "softargmax: interrupted\n"
    assert (tmp_path / "p.npy").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.npy", "z.npy"]


def test_a_progress_bar_on_a_terminal(tmp_path):
    np.save(tmp_path / "z.npy", np.zeros((64, 1 << 16), np.float32))
    line = f"{sys.executable} -m softargmax.cli z.npy -o p.npy --memory 1M"
    script = f"import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn({line.split()!r})))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, stdin=subprocess.DEVNULL, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 0
    assert b"MiB" in done.stdout
    assert b"64 x 65536 float32" in done.stdout
