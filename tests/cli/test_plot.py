"""Pictures: drawn, whole, and of what they say."""

import numpy as np
import pytest

import softargmax

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(("name", "magic"), [("f.png", b"\x89PNG"), ("f.svg", b"<?xml"), ("f.pdf", b"%PDF")])
def test_a_picture(run, tmp_path, name, magic):
    done = run("plot", "1", "2", "-3", "--temperatures", "0.1", "1", "10", "-o", name)
    assert (done.code, done.out, done.err) == (0, name + "\n", "")
    assert (tmp_path / name).read_bytes().startswith(magic)


def test_the_drawn_numbers(run):
    words = ["--temperatures", "0", "1", "-2", "--base", "2", "-o", "f.png", "--json"]
    found = run("plot", "3", "-1", "2", *words).json()
    assert found["temperatures"] == [0.0, 1.0, -2.0]
    for temperature, p in zip(found["temperatures"], found["probabilities"], strict=True):
        assert p == softargmax.softmax([3.0, -1.0, 2.0], temperature=temperature, base=2.0).tolist()
    assert run("plot", "3", "1", "--json").json()["temperatures"] == [0.1, 1.0, 10.0]


def test_other_numbers_make_another_picture(run, tmp_path):
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
    assert run("plot", "inf", "1", "-inf", "nan", "-o", "f.png").code == 0


def test_a_table_is_not_a_row(run, tmp_path):
    np.save(tmp_path / "z.npy", np.zeros((2, 2)))
    done = run("plot", "z.npy")
    assert done.code == 2
    assert "shape (2, 2)" in done.err


def test_a_picture_that_cannot_be_written(run):
    done = run("plot", "1", "2", "-o", "none/f.png")
    assert (done.code, done.err) == (1, done.err)
    assert "none: No such file or directory" in done.err
