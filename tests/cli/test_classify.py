"""``softargmax fit`` and ``softargmax predict`` on scikit-learn's data sets, with all options."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine

pytest.importorskip("pyarrow")
pytest.importorskip("skops")


@pytest.fixture
def wine(tmp_path):
    """Return the path of a file with the wine data, a column of categories and a column of distinct names."""
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
    """Write a copy of a CSV file in which one field is changed."""
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
    report = found.json()
    assert report["rows"] == 178
    assert report["features"] == 16
    assert report["classes"] == ["class_0", "class_1", "class_2"]
    assert report["accuracy"] > 0.95
    assert report["log_loss"] < 0.2 < report["shares"]["log_loss"]
    low, high = report["calibration_interval"]
    assert 0 <= low <= high < 0.2
    assert run("predict", "kept", wine, "-o", "out.csv").code == 0
    rows = records_of(tmp_path / "out.csv")
    p = np.array([[float(row[f"p_class_{k}"]) for k in range(3)] for row in rows])
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    assert [row["cultivar"] for row in rows] == [f"class_{k}" for k in p.argmax(axis=1)]
    right = [row["cultivar"] for row in records_of(wine)]
    assert np.mean([row["cultivar"] == y for row, y in zip(rows, right, strict=True)]) > 0.97


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ("--C 0.1", {"C": 0.1}),
        ("--C 0.1 --l1-ratio 1", {"C": 0.1, "l1_ratio": 1.0}),
        ("--calibrate", {}),
        ("--folds 3 --seed 7", {}),
    ],
)
def test_the_same_model_as_in_python(run, tmp_path, options, made):
    """For every option, the report and the probabilities equal those of the same model in Python."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from softargmax.classify import SoftmaxRegression, TemperatureScaling, calibration_report

    data = load_breast_cancer()
    with (tmp_path / "cells.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [[*data.feature_names, "kind"], *([*x, y] for x, y in zip(data.data, data.target, strict=True))]
        )
    report = run("fit", "cells.csv", "--target", "kind", *options.split(), "-o", "kept", "--json").json()
    found = run("predict", "kept", "cells.csv")
    p = np.array([[float(row["p_0"]), float(row["p_1"])] for row in csv.DictReader(io.StringIO(found.out))])
    model = make_pipeline(StandardScaler(), SoftmaxRegression(**made, tol=1e-6, max_iter=1000))
    model = TemperatureScaling(model) if "--calibrate" in options else model
    folds, seed = (3, 7) if "--folds" in options else (5, 0)
    parts = StratifiedKFold(folds, shuffle=True, random_state=seed)
    unseen = cross_val_predict(model, data.data, data.target, cv=parts, method="predict_proba")
    assert report["log_loss"] == pytest.approx(calibration_report(data.target, unseen).log_loss, rel=1e-9)
    np.testing.assert_allclose(p, model.fit(data.data, data.target).predict_proba(data.data), rtol=1e-9)


def test_same_seed_gives_the_same_report(run, wine):
    first, again, other = (run("fit", wine, *FIT, "--json", "--seed", seed).out for seed in (1, 1, 2))
    assert first == again != other


def test_new_rows_need_no_classes(run, wine, tmp_path):
    assert run("fit", wine, *FIT, "-o", "kept").code == 0
    rows = [[field for i, field in enumerate(row) if i < 14] for row in rows_of(wine)]
    rows = [list(reversed(row)) for row in rows]  # new rows may have their columns in another order
    with (tmp_path / "new.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    found = run("predict", "kept", "new.csv")
    assert found.code == 0
    assert found.out == run("predict", "kept", wine).out
    assert "accuracy" in run("predict", "kept", wine, "-o", "out.csv").out
    assert "accuracy" not in run("predict", "kept", "new.csv", "-o", "out.csv").out


def test_printed_report(run, wine):
    found = run("fit", wine, *FIT)
    for word in (
        "178 rows",
        "16 features",
        "softmax",
        "class frequencies",
        "log-loss",
        "its interval is corrected",
        "use -o MODEL",
    ):
        assert word in found.out
    assert run("fit", "-", *FIT, "--json", stdin=wine.read_bytes()).json() == run("fit", wine, *FIT, "--json").json()


def test_failed_fit_keeps_the_old_model(run, wine, tmp_path):
    assert run("fit", wine, *FIT, "-o", "kept").code == 0
    before = (tmp_path / "kept").read_bytes()
    assert run("fit", changed(wine, "gap.csv", 3, "ash", ""), *FIT, "-o", "kept").code == 1
    assert (tmp_path / "kept").read_bytes() == before


BAD = [
    ("--target cultivr", "did you mean 'cultivar'?"),
    ("--target CULTIVAR", "did you mean 'cultivar'?"),
    ("--target alcohol --drop id", "fractions"),
    ("--target cultivar --drop id --model lda --C 2", "expected with --model softmax only, got --model lda"),
    ("--target cultivar --drop id -o .", ".: expected a regular file or a new name"),
    ("--target cultivar --drop id -o wine.csv", "expected a file other than the source"),
    ("--target cultivar --drop id -o ./wine.csv", "expected a file other than the source"),
    ("--target cultivar", "'id' has a different word in every row"),
    ("--target cultivar --drop ids", "did you mean 'id'?"),
    ("--target cultivar --drop id --folds 60", "for --folds 60, got 48 of class"),
    ("--target cultivar --drop id --model svm", "softmax, lda, qda, nb"),
    ("--target cultivar --drop id --C 0", "--C"),
    ("--target cultivar --drop id --l1-ratio 2", "l1-ratio"),
    ("--target cultivar --drop id -o nowhere/kept", "--output nowhere/kept: expected a folder that exists"),
    ("", "target"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_wrong_use(run, wine, options, message):
    found = run("fit", wine, *options.split())
    assert found.code in (1, 2)
    assert message in found.err
    assert found.err.count("\n") == 1


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("ash", "", "'ash': one cell is empty, first in row 3"),
        ("ash", "NaN", "'ash': one cell is empty"),
        ("ash", "inf", "row 3: expected an absolute value of at most 1e+100, got inf"),
        ("cultivar", "", "'cultivar': one cell is empty"),
        ("colour", "", "'colour': one cell is empty"),
        ("cultivar", "class_9", "expected 5 rows or more of each class for --folds 5, got 1 of class 'class_9'"),
    ],
)
def test_empty_cells_and_rare_classes(run, wine, column, value, message):
    found = run("fit", changed(wine, "bad.csv", 3, column, value), *FIT)
    assert found.code == 1
    assert message in found.err


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("ash", "", "'ash': one cell is empty"),
        ("ash", "much", "column 'ash', row 3: 'much' is not a number"),
        ("colour", "blue", "row 3: 'blue' is none of the 3 categories"),
    ],
)
def test_new_rows_that_the_model_cannot_read(run, wine, tmp_path, column, value, message):
    assert run("fit", wine, *FIT, "-o", "kept").code == 0
    found = run("predict", "kept", changed(wine, "bad.csv", 3, column, value), "-o", "out.csv")
    assert found.code == 1
    assert message in found.err


def test_unknown_classes_are_left_out_of_the_accuracy(run, wine, tmp_path):
    assert run("fit", wine, *FIT, "-o", "kept").code == 0
    assert "; accuracy 100.0%, log-loss" in run("predict", "kept", wine, "-o", "out.csv").out
    new = changed(changed(wine, "one.csv", 3, "cultivar", "class_9"), "two.csv", 4, "cultivar", "")
    found = run("predict", "kept", new, "-o", "out.csv")
    assert found.code == 0, found.err
    assert "178 rows: out.csv; accuracy 100.0%, log-loss" in found.out
    assert "(of 176 rows with known classes)" in found.out
    assert (tmp_path / "out.csv").read_text() == run("predict", "kept", new).out
    wine.write_text(wine.read_text().replace("class_", "kind "))
    assert run("predict", "kept", wine, "-o", "out.csv").out == "178 rows: out.csv\n"


def test_warnings_are_separate_lines(run, wine, monkeypatch):
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from softargmax.classify import SoftmaxRegression
    from softargmax.cli.classify import models

    assert run("fit", wine, *FIT, "--json").json()["warnings"] == []
    made = make_pipeline(StandardScaler(), SoftmaxRegression(max_iter=3))
    monkeypatch.setattr(models, "estimator_of", lambda *_, **__: made)
    found = run("fit", wine, *FIT)
    assert found.code == 0
    assert not found.err
    found_warnings = [line for line in found.out.splitlines() if line.startswith("warning: max_iter, 3, was reached")]
    # All six fits (five folds and the final one) give this warning, but it is printed once.
    assert len(found_warnings) == 1
    assert found.out.count("warning") == 1
    assert run("fit", wine, *FIT, "--json").json()["warnings"] == [found_warnings[0].removeprefix("warning: ")]


def test_model_of_another_scikit_learn_warns(run, wine, tmp_path):
    import zipfile

    import sklearn

    assert run("fit", wine, *FIT, "-o", "kept").code == 0
    with zipfile.ZipFile(tmp_path / "kept") as old, zipfile.ZipFile(tmp_path / "other", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b'"' + sklearn.__version__.encode(), b'"0.1'))
    found = run("predict", "other", wine)
    assert found.code == 0
    assert found.out == run("predict", "kept", wine).out
    assert all(line.startswith("warning: Trying to") for line in found.err.splitlines())
    assert found.err


def table_of(path, **columns):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])


def test_qda_names_the_class_and_the_column(run, tmp_path):
    rng = np.random.default_rng(0)
    t, x, z = np.arange(400) % 2, rng.normal(size=400), rng.normal(size=400)
    colour = np.where(t, "red", rng.choice(["red", "blue"], 400))
    once = np.where(t, np.arange(400) == 7, x)
    little = np.where(t, 0.03 * x, x)
    for columns, message in (
        ({"a": z, "b": np.where(t, 2, x)}, "class '1' does not vary in column 'b'; --drop b leaves out the column, or"),
        (
            {"a": z, "b": np.where(t, 1e-6 * x, x)},
            "class '1' hardly varies in column 'b'; --drop b leaves out the column, or",
        ),
        ({"a": z, "my k": colour}, "class '1' does not vary in column 'my k' ('blue' or not); --drop 'my k' leaves"),
        ({"a": z, "b": once}, "class '1' does not vary in column 'b' without the rows of one fold;"),
        (
            {"a": z, "b": little, "c": 2 * little},
            "in class '1' some columns are linear functions of others; try --model lda",
        ),
    ):
        table_of(tmp_path / "t.csv", **columns, t=t)
        for options in ((), ("--calibrate",)):
            found = run("fit", "t.csv", "--target", "t", "-m", "qda", *options)
            assert found.code == 1
            assert message in found.err
            assert "--model lda" in found.err
        assert run("fit", "t.csv", "--target", "t", "-m", "lda").code == 0


def test_loss_of_0_has_no_minus_sign(run, tmp_path):
    table_of(tmp_path / "t.csv", a=np.arange(40) % 2 * 2e6 + np.arange(40), t=np.arange(40) % 2)
    assert run("fit", "t.csv", "--target", "t", "-m", "nb", "-o", "kept", "--json").json()["log_loss"] == 0
    assert " 0.0000 " in run("fit", "t.csv", "--target", "t", "-m", "nb").out
    assert run("predict", "kept", "t.csv", "-o", "out.csv").out.endswith("log-loss 0.0000\n")
