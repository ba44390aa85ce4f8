"""Bare numbers, options, printed results, and exit codes of wrong use."""

import math
import os

import numpy as np
import pytest

import softargmax
from softargmax.cli import parse, render
from softargmax.cli.app import dispatched
from softargmax.core import dispatch

CHAIN = ["1", "2", "3", "4", "1", "2", "3"]


def columns(out):
    return [[float(cell) for cell in line.split("\t")] for line in out.splitlines()]


def test_numbers_give_values_and_probabilities(run):
    done = run(*CHAIN)
    assert done.code == 0
    assert done.err == ""
    z, p = zip(*columns(done.out), strict=True)
    assert list(z) == [float(word) for word in CHAIN]
    assert list(p) == softargmax.softmax(list(z)).tolist()


@pytest.mark.parametrize(
    "words", [["-1", "2", "-3.5"], ["-1e-3", "-.5", "-inf"], ["2", "-1E5"], ["-0"], ["--", "-1", "2"]]
)
def test_negative_numbers_are_not_options(run, words):
    done = run(*words)
    assert done.code == 0
    assert [z for z, _ in columns(done.out)] == [float(word) for word in words if word != "--"]


@pytest.mark.parametrize("word", ["-nan", "-NaN", "-NAN", "-inf", "-INF", "-Infinity", "-INFINITY", "-infinity"])
def test_negative_nonfinite_numbers_are_not_options(run, word):
    for words in (["1", word], [word, "1"], ["1", word, "--axis", "0"], ["--", "1", word], ["plot", "1", word]):
        done = run("--json", *words) if words[0] != "plot" else run(*words, "--json")
        assert (done.code, done.err) == (0, "")
        assert sorted(map(str, done.json()["values"])) == sorted(["1.0", str(float(word))])
    done = run("1", "2", "--temperature", word)
    assert (done.code, "temperature: expected any number except NaN" in done.err) == (
        (2, True) if "a" in word.lower() else (0, False)
    )


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--temperature", "10"], {"temperature": 10.0}),
        (["--temperature", "-2"], {"temperature": -2.0}),
        (["-t", "0"], {"temperature": 0.0}),
        (["--temperature=inf"], {"temperature": math.inf}),
        (["--base", "2"], {"base": 2.0}),
        (["--base", "2", "--temperature", "0.5"], {"base": 2.0, "temperature": 0.5}),
        (["--dtype", "f32"], {"dtype": "float32"}),
        (["--dtype", "float16"], {"dtype": "float16"}),
    ],
)
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_options_are_passed_to_the_function(run, words, options, log, first):
    words = [*words, *(["--log"] if log else [])]
    done = run(*([*words, *CHAIN] if first else [*CHAIN, *words]), "--json")
    expected = (softargmax.log_softmax if log else softargmax.softmax)([float(word) for word in CHAIN], **options)
    found = done.json()
    key = "log_probabilities" if log else "probabilities"
    assert np.array(found[key], expected.dtype).tobytes() == expected.tobytes() or np.isinf(expected).any()
    assert found["dtype"] == str(expected.dtype)
    assert {key: found[key] for key in options if key != "temperature"} == {
        key: value for key, value in options.items() if key != "temperature"
    }


def test_json_output_is_strict_json(run):
    found = run("1", "-inf", "nan", "--log", "--json").json()
    assert found["values"] == [1.0, "-inf", "nan"]
    assert found["log_probabilities"] == ["nan", "-inf", "nan"]
    found = run("0", "-40", "--json").json()
    assert found["logsumexp"] == pytest.approx(4.248354255291589e-18, rel=1e-15)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["1", "2", "--axis", "1"], "axis: expected from -1 to 0, got 1"),
        (["1", "2", "--axis", "x"], "--axis x"),
        (["1", "2", "--base", "-1"], "base: expected a finite number above 0, got -1.0"),
        (["1", "2", "--base", "0"], "base: expected a finite number above 0, got 0.0"),
        (
            ["1", "2", "--temperature", "nan"],
            "temperature: expected any number except NaN, got nan",
        ),
        (["1", "2", "--temperature", "warm"], "--temperature"),
        (["1", "2", "--temperature"], "--temperature"),
        (["1", "2", "--dtype", "f8"], "--dtype f8"),
        (["1", "2", "--tempreature", "3"], "did you mean --temperature?"),
        (["1", "2", "-x"], "no option -x"),
        (["1", "two"], "'two' is not a number"),
        (["1", "info"], "expected the subcommand first"),
        (["--json", "bench"], "expected the subcommand first"),
        (["a.csv", "b.csv"], "expected one file, got a.csv b.csv"),
        (["1", "2", "-o", "p.xyz"], "p.xyz: expected a name that ends in"),
        (["1", "2", "-o", "p.npy", "--memory", "many"], "--memory many"),
        (["1", "2", "-o", "p.npy", "--memory", "10"], "memory: expected 1048576 (1 MiB) or more, got 10 bytes"),
        (["1", "2", "--memory", "1"], "memory: expected 1048576 (1 MiB) or more, got 1 bytes"),
        (["1", "2", "--memory", "-5M"], "--memory -5M"),
        (["bench", "--memory", "1"], "memory: expected 1048576 (1 MiB) or more, got 1 bytes"),
        (["bench", "--size", "much"], "--size much"),
        (["1", "1_000"], "'1_000' is not a number"),
        (["1", "2", "--temperature", "1_0"], "--temperature"),
        (["1", "2", "--base", "1_0"], "--base"),
        (["1", "2", "--axis", "1_0"], "--axis 1_0"),
        (["1", "2", "--memory", "1_0M"], "--memory 1_0M"),
        (["plot", "1", "2", "-t", "1_0"], "-t needs at least one number; '1_0' is not a number"),
        (["plot", "1", "2", "--temperatures", "a"], "--temperatures needs at least one number; 'a' is not a number"),
        (["1,2,3"], "1,2,3: separate numbers by spaces, not commas: 1 2 3"),
        (["1,", "2,", "3"], "1,: separate numbers by spaces, not commas: 1"),
        (["-1,2"], "-1,2: separate numbers by spaces, not commas: -1 2"),
        (["infoo"], "infoo: no such file or subcommand; did you mean info?"),
        (["predcit", "kept", "new.csv"], "did you mean predict?"),
        (["fit", "t.csv", "-t", "kind"], "-t"),
        (["1", "1e400"], "1e400: too large for float64; infinity is written inf"),
        (["1", "-1e400"], "-1e400: too large for float64"),
        (["1", "2", "-t", "1e400"], "1e400: too large for float64"),
        (["plot", "1", "2", "-t", "1e400"], "1e400: too large for float64"),
        (["1", "2", "-o", "."], ".: expected a name that ends in"),
        (["--json"], "nothing to do"),
        (["plot"], "nothing to draw"),
        (["plot", "1", "2", "--temperatures"], "--temperatures needs at least one number"),
        (["plot", "1", "2", "-o", "f.gif"], "f.gif"),
        (["plot", "1", "2", "--base", "-3"], "base: expected a finite number above 0, got -3.0"),
        (["info", "--colour"], "--colour"),
        (["bench", "kitchen"], "kitchen: expected one of normalize, "),
        (["bench", "--rounds", "1"], "--rounds"),
        (["demo", "--only", "nothing"], "--only nothing: expected one of values, "),
    ],
)
def test_wrong_use_is_one_line_and_code_2(run, words, message):
    done = run(*words)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("softargmax: ")
    assert done.err.count("\n") == 1
    assert message in done.err


def test_own_bugs_keep_their_traceback(run, monkeypatch):
    def broken(*_, **__):
        raise TypeError("base: a bug")

    monkeypatch.setattr(render, "vector", broken)
    with pytest.raises(TypeError, match="a bug"):
        run("1", "2")


@pytest.mark.parametrize("word", ["inf", "-inf", "nan"])  # inf could be taken for the subcommand info
def test_words_that_are_numbers_are_not_subcommands(run, word):
    assert run(word, "1", "--json").json()["values"] == [word, 1.0]


@pytest.mark.parametrize("words", [["1", "2"], ["info"], ["demo", "--only", "values"]], ids=" ".join)
def test_missing_instruction_set_is_wrong_use(command, words):
    done = command(*words, env={**os.environ, "SOFTARGMAX_ISA": "z80"})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("softargmax: SOFTARGMAX_ISA: expected one of ")


def test_missing_implementation_is_wrong_use(run, tmp_path):
    np.save(tmp_path / "z.npy", np.ones(3))
    lines = ["1 2", "z.npy", "z.npy -o p.npy", "z.npy -o p.csv", "plot z.npy", "info", "bench normalize", "demo"]
    token = dispatch._requested.set("abacus")  # the same as SOFTARGMAX_IMPLEMENTATION=abacus
    try:
        for line in lines:
            done = run(*line.split())
            assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), line
            assert done.err.startswith("softargmax: SOFTARGMAX_IMPLEMENTATION: expected "), line
            assert done.err.endswith("got 'abacus'\n"), line
    finally:
        dispatch._requested.reset(token)
    assert run("--version").code == run("--help").code == 0


def test_help_and_version(run):
    for words in (
        [],
        ["--help"],
        ["-h"],
        ["softmax", "--help"],
        ["plot", "-h"],
        ["bench", "--help"],
        ["demo", "--help"],
    ):
        done = run(*words)
        assert done.code == 0
        assert "Usage" in done.out
    assert run("--version").out == softargmax.__version__ + "\n"


def test_dispatch():
    assert dispatched(["1"]) == ["softmax", "1"]
    assert dispatched(["-1", "2"]) == ["softmax", "-1", "2"]
    assert dispatched(["info", "--json"]) == ["info", "--json"]
    assert dispatched(["plot", "1", "--temperatures", "1", "2", "-o", "f.png"])[2:-2] == ["--temperatures", "1"] * 1 + [
        "--temperatures", "2"
    ]  # fmt: skip


def test_sizes():
    assert parse.bytes_named("1K") == 1024
    assert parse.bytes_named("2MiB") == 2 << 20
    assert parse.bytes_named("0.5G") == 1 << 29


def test_bars():
    assert render.bar(1.0, 3).plain == "███"
    assert render.bar(0.0, 3).plain == "   "
    assert render.bar(float("nan"), 3).plain == "   "
    assert render.bar(1 / 48, 6).plain == "▏     "


def test_terminal_output_has_bars(run, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    done = run(*CHAIN)
    assert done.code == 0
    assert "█" in done.out
    assert "0.474833" in done.out
    assert "-inf" in run("1", "-inf", "--log").out
    assert "and 36 more" in run(*["1"] * 100).out
