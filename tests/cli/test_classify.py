"""``softargmax fit`` and ``softargmax predict`` on files written from scikit-learn's data sets, good and bad."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine

pytest.importorskip("pyarrow")
pytest.importorskip("skops")


@pytest.fixture
def wine(tmp_path):
    """A file of numbers, a category, and a name for every row."""
    data, rng = load_wine(), np.random.default_rng(0)
    head = [*(name.replace("/", " per ") for name in data.feature_names), "colour", "id", "cultivar"]
    with (tmp_path / "wine.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        for i, (x, y) in enumerate(zip(data.data, data.target, strict=True)):
            colour = rng.choice(["red", "pale, or so", "dark"])
            writer.writerow([*x, colour, f"w{i}", data.target_names[y]])
    return tmp_path / "wine.csv"


FIT = ("--target", "cultivar", "--drop", "id")


def rows_of(path):
    with path.open() as file:
        return list(csv.reader(file))


def records_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def changed(path, name, row, column, value):
    """The file with one field changed."""
    rows = rows_of(path)
    at = rows[0].index(column)
    rows[row][at] = value
    with (path.parent / name).open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path.parent / name


@pytest.mark.parametrize("model", ["softmax", "lda", "qda", "nb"])
@pytest.mark.parametrize("calibrate", [False, True])
def test_fit_and_predict(run, wine, tmp_path, model, calibrate):
    found = run("fit", wine, *FIT, "--model", model, "-o", "kept", "--json", *["--calibrate"] * calibrate)
    assert found.code == 0, found.err
    told = found.json()
    assert told["rows"] == 178
    assert told["features"] == 16
    assert told["classes"] == ["class_0", "class_1", "class_2"]
    assert told["accuracy"] > 0.95
    assert told["log_loss"] < 0.2 < told["shares"]["log_loss"]
    low, high = told["calibration_interval"]
    assert 0 <= low <= high < 0.2
    assert run("predict", "kept", wine, "-o", "out.csv").code == 0
    rows = records_of(tmp_path / "out.csv")
    p = np.array([[float(row[f"p_class_{k}"]) for k in range(3)] for row in rows])
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    assert [row["cultivar"] for row in rows] == [f"class_{k}" for k in p.argmax(axis=1)]
    right = [row["cultivar"] for row in records_of(wine)]
    assert np.mean([row["cultivar"] == y for row, y in zip(rows, right, strict=True)]) > 0.97


def test_the_same_model_as_in_python(run, wine, tmp_path):
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from softargmax.classify import SoftmaxRegression

    data = load_breast_cancer()
    with (tmp_path / "cells.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [[*data.feature_names, "kind"], *([*x, y] for x, y in zip(data.data, data.target, strict=True))]
        )
    assert run("fit", "cells.csv", "-t", "kind", "--C", "0.1", "-o", "kept").code == 0
    found = run("predict", "kept", "cells.csv")
    p = np.array([[float(row["p_0"]), float(row["p_1"])] for row in csv.DictReader(io.StringIO(found.out))])
    model = make_pipeline(StandardScaler(), SoftmaxRegression(0.1, tol=1e-6, max_iter=1000)).fit(data.data, data.target)
    np.testing.assert_allclose(p, model.predict_proba(data.data), rtol=1e-9)


def test_the_same_seed_says_the_same(run, wine):
    first, again, other = (run("fit", wine, *FIT, "--json", "--seed", seed).out for seed in (1, 1, 2))
    assert first == again != other


def test_new_rows_need_no_classes(run, wine, tmp_path):
    assert run("fit", wine, *FIT, "-o", "kept").code == 0
    rows = [[field for i, field in enumerate(row) if i < 14] for row in rows_of(wine)]
    rows = [list(reversed(row)) for row in rows]  # columns in another order
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    found = run("predict", "kept", "new.csv")
    assert found.code == 0
    assert found.out == run("predict", "kept", wine).out
    assert "right" in run("predict", "kept", wine, "-o", "out.csv").out
    assert "right" not in run("predict", "kept", "new.csv", "-o", "out.csv").out


def test_what_is_printed(run, wine):
    found = run("fit", wine, *FIT)
    for word in ("178 rows", "16 features", "softmax", "shares of the classes", "log-loss", "-o MODEL keeps it"):
        assert word in found.out
    assert run("fit", "-", *FIT, "--json", stdin=wine.read_bytes()).json() == run("fit", wine, *FIT, "--json").json()


def test_a_refused_fit_keeps_the_old_model(run, wine, tmp_path):
    assert run("fit", wine, *FIT, "-o", "kept").code == 0
    before = (tmp_path / "kept").read_bytes()
    assert run("fit", changed(wine, "gap.csv", 3, "ash", ""), *FIT, "-o", "kept").code == 1
    assert (tmp_path / "kept").read_bytes() == before


BAD = [
    ("--target cultivr", "'cultivar' is the nearest"),
    ("--target alcohol --drop id", "fractions"),
    ("--target cultivar --drop id --model lda --C 2", "lda has no penalty"),
    ("--target cultivar --drop id -o .", "not a regular file"),
    ("--target cultivar --drop id -o wine.csv", "the source itself"),
    ("--target cultivar --drop id -o ./wine.csv", "the source itself"),
    ("--target cultivar", "'id': every row has a word of its own"),
    ("--target cultivar --drop ids", "'id' is the nearest"),
    ("--target cultivar --drop id --folds 60", "has 48 of 178 rows"),
    ("--target cultivar --drop id --model svm", "softmax, lda, qda, nb"),
    ("--target cultivar --drop id --C 0", "--C"),
    ("--target cultivar --drop id --l1-ratio 2", "l1-ratio"),
    ("--target cultivar --drop id -o nowhere/kept", "no such folder"),
    ("", "target"),
]


@pytest.mark.parametrize(("options", "said"), BAD)
def test_wrong_use(run, wine, options, said):
    found = run("fit", wine, *options.split())
    assert found.code in (1, 2)
    assert said in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("ash", "", "'ash': one row is empty, the first of them 3"),
        ("ash", "NaN", "'ash': one row is empty"),
        ("ash", "inf", "row 3: inf"),
        ("cultivar", "", "'cultivar': one row is empty"),
        ("colour", "", "'colour': one row is empty"),
        ("cultivar", "class_9", "class 'class_9' has 1 of 178 rows"),
    ],
)
def test_gaps_and_rare_classes(run, wine, column, value, said):
    found = run("fit", changed(wine, "bad.csv", 3, column, value), *FIT)
    assert found.code == 1
    assert said in found.err


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("ash", "", "'ash': one row is empty"),
        ("ash", "much", "column 'ash', row 3: 'much' is no number"),
        ("colour", "blue", "row 3: 'blue' is none of the 3 categories"),
        ("cultivar", "class_9", "row 3: 'class_9' is no class"),
    ],
)
def test_new_rows_that_the_model_cannot_read(run, wine, tmp_path, column, value, said):
    assert run("fit", wine, *FIT, "-o", "kept").code == 0
    found = run("predict", "kept", changed(wine, "bad.csv", 3, column, value), "-o", "out.csv")
    assert found.code == 1
    assert said in found.err


def written(path, text):
    path.write_text(text)
    return path


def test_files_as_other_programs_write_them(run, tmp_path):
    """Semicolons, a mark of the byte order, words that look like numbers or truths; they come back as they were."""
    rows = [
        ("01", "true", 1.5),
        ("02", "false", 2.5),
        ("x1", "true", 1.0),
        ("01", "false", 3.5),
        ("02", "true", 1.2),
    ] * 8
    text = "\ufeffcode;Name of it;size\r\n" + "".join(f"{a};{b};{c}\r\n" for a, b, c in rows)
    path = written(tmp_path / "semi.csv", text)
    assert run("fit", path, "-t", "Name of it", "--folds", "2", "-o", "kept").code == 0
    found = run("predict", "kept", written(tmp_path / "new.csv", "size,code\n1.5,01\n2,02\n"))
    assert found.code == 0, found.err
    assert found.out.splitlines()[0] == '"Name of it","p_false","p_true"'
    assert {line.split(",")[0] for line in found.out.splitlines()[1:]} <= {'"true"', '"false"'}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["12345678901234567890,1", "12345678901234567891,2"] * 4, None),  # classes beyond 64 bits stay apart
        (["a,9007199254740993", "b,2"] * 4, None),
        (["None,1", "null,2"] * 4, "4 rows are empty"),
        (["a,1e200", "b,2"] * 4, "up to 1e+100"),
        ([*(["a,1", "b,2"] * 20), "a,7x"], "row 41: '7x' is no number, as 40 others"),
        (["v,1", "w,2"] * 4, "the name of a class's probability"),
    ],
)
def test_odd_columns(run, tmp_path, rows, said):
    head = "p_v,x" if "v,1" in rows else "t,x"
    found = run(
        "fit", written(tmp_path / "odd.csv", "\n".join([head, *rows])), "-t", head[:-2], "--folds", "2", "--json"
    )
    if said is None:
        assert found.code == 0, found.err
        assert len(found.json()["classes"]) == 2
        return
    assert found.code == 1
    assert said in found.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "Empty CSV file"),
        (b"a,b\n", "no row"),
        (b"a,b\n1,2\n3\n", "Expected 2 columns, got 1"),
        (b"a,a\n1,2\n", "two columns"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "cannot be read"),
        (b"a,b\n1,x\n1,y\n1,x\n1,y\n", "'a' is the same in every row"),
        (b"a,b\nu,x\nu,y\nu,x\nu,y\n", "'a' is the same in every row"),
        (b"a,b\n2020-01-01,x\n2020-01-02,y\n2020-01-01,x\n2020-01-02,y\n", "--drop a"),
        (b"b\nx\ny\nx\ny\n", "no column but the target"),
        (b"a,b\n1,x\n2,x\n3,x\n4,x\n", "every row has class 'x'"),
        (b"a,c\n1,2\n3,4\n", "--target b"),
    ],
)
def test_files_that_nothing_can_be_learned_from(run, tmp_path, text, said):
    (tmp_path / "bad.csv").write_bytes(text)
    found = run("fit", "bad.csv", "--target", "b", "--folds", "2")
    assert found.code == 1
    assert said in found.err
    assert found.err.count("\n") == 1


def test_files_that_are_no_models(run, wine, tmp_path):
    from skops.io import dump, loads

    from softargmax.cli.classify.models import TRUSTED

    assert run("fit", wine, *FIT, "-o", "kept").code == 0
    data = (tmp_path / "kept").read_bytes()
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    (tmp_path / "text").write_text("hello")
    dump({"format": "another"}, tmp_path / "other")
    dump(load_iris, tmp_path / "function")
    for name, said in (
        ("cut", "model"),
        ("text", "no model"),
        ("other", "no model"),
        ("function", "no model"),
        ("absent", "no such file"),
        (".", "folder"),
    ):
        found = run("predict", name, wine)
        assert found.code == 1
        assert said in found.err
    for output in (wine, "./wine.csv", "kept", "./kept"):
        assert run("predict", "kept", wine, "-o", output).code == 2
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    told = loads(data, trusted=TRUSTED)
    function = make_pipeline(FunctionTransformer(np.exp), told["estimator"][1])
    for name, part in (("estimator", function), ("estimator", None), ("numbers", 3), ("target", None), ("numbers", [])):
        dump({**told, name: part}, tmp_path / "changed")
        found = run("predict", "changed", wine)
        assert found.code == 1
        assert "do not fit each other" in found.err
    flipped = bytearray(data)
    for at in range(100, len(data), 997):
        flipped[at] ^= 0xFF
    (tmp_path / "damaged").write_bytes(flipped)
    assert run("predict", "damaged", wine).code == 1
