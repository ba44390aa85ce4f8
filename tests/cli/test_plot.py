"""Pictures: files, contents and errors of ``softargmax plot``."""

import numpy as np
import pytest

import softargmax

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(("name", "magic"), [("f.png", b"\x89PNG"), ("f.svg", b"<?xml"), ("f.pdf", b"%PDF")])
def test_picture_files(run, tmp_path, name, magic):
    done = run("plot", "1", "2", "-3", "--temperatures", "0.1", "1", "10", "-o", name)
    assert (done.code, done.out, done.err) == (0, name + "\n", "")
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_drawn_probabilities(run):
    words = ["--temperatures", "0", "1", "-2", "--base", "2", "-o", "f.png", "--json"]
    found = run("plot", "3", "-1", "2", *words).json()
    assert found["temperatures"] == [0.0, 1.0, -2.0]
    for temperature, p in zip(found["temperatures"], found["probabilities"], strict=True):
        assert p == softargmax.softmax([3.0, -1.0, 2.0], temperature=temperature, base=2.0).tolist()
    assert run("plot", "3", "1", "--json").json()["temperatures"] == [0.1, 1.0, 10.0]


@pytest.mark.parametrize("option", ["--temperatures", "-t"])
def test_every_number_after_the_option_is_a_temperature(run, option):
    found = run("plot", "1", "2", option, "0.1", "10", "--json").json()
    assert (found["values"], found["temperatures"]) == ([1.0, 2.0], [0.1, 10.0])
    attached = f"{option}0.1" if option == "-t" else f"{option}=0.1"
    found = run("plot", "1", "2", attached, "10", "--base", "2", "--json").json()
    assert (found["values"], found["temperatures"]) == ([1.0, 2.0], [0.1, 10.0])
    done = run("plot", "1", "2", option, "-o", "f.png")
    assert (done.code, done.err) == (2, f"softargmax: {option} needs at least one number\n")


def test_perplexity_belongs_to_the_drawn_distribution(run):
    found = run("plot", "3", "-1", "2", "-t", "1", "2", "--base", "2", "--json").json()
    for p, perplexity in zip(found["probabilities"], found["perplexities"], strict=True):
        assert perplexity == pytest.approx(np.exp(-np.sum(p * np.log(p))), rel=1e-12)


def test_different_numbers_give_different_pictures(run, tmp_path):
    for name, words in {"a": ["1", "2"], "b": ["1", "3"], "c": ["1", "2", "-t", "3"]}.items():
        assert run("plot", *words, "-o", f"{name}.png").code == 0
    assert len({(tmp_path / f"{name}.png").read_bytes() for name in "abc"}) == 3


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_a_row_from_a_file(run, tmp_path, kind):
    z = np.sin(np.arange(300.0))
    np.save(tmp_path / "z.npy", z)
    np.savetxt(tmp_path / "z.csv", z)
    assert run("plot", f"z.{kind}", "-o", "f.png").code == 0


def test_scores_at_the_edges(run):
    for words in (["inf", "1", "-inf", "nan"], ["nan", "inf"], ["nan"], ["-inf", "-inf"]):
        done = run("plot", *words, "-o", "f.png")
        assert (done.code, done.err) == (0, "")


def test_missing_scores_or_unwritable_outputs(run, tmp_path):
    np.save(tmp_path / "z.npy", np.zeros(0))
    assert run("plot", "z.npy").err == "softargmax: z.npy: expected at least one score, got none\n"
    (tmp_path / "f.png").mkdir()
    done = run("plot", "1", "2", "-o", "f.png")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "f.png: expected a regular file" in done.err


def test_a_table_is_not_a_row(run, tmp_path):
    np.save(tmp_path / "z.npy", np.zeros((2, 2)))
    done = run("plot", "z.npy")
    assert done.code == 2
    assert "shape (2, 2)" in done.err


def test_picture_that_cannot_be_written(run):
    done = run("plot", "1", "2", "-o", "none/f.png")
    assert (done.code, done.err) == (1, done.err)
    assert "none: No such file or directory" in done.err
