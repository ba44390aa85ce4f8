"""Files for ``softargmax fit`` and ``softargmax predict``: formats of other programs, broken files, invalid models."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import pytest
from sklearn.datasets import load_iris

pytest.importorskip("pyarrow")
pytest.importorskip("skops")


def written(path, text):
    path.write_text(text)
    return path


def flowers(path, mark=",", **changed):
    """Write the iris data with two numeric columns, the length and width of the sepals.

    A keyword argument names a column. Its value is a function that changes each cell of the column.
    """
    data = load_iris()
    columns = {"length": data.data[:, 0], "width": data.data[:, 1]}
    columns |= {name: [change(i, x) for i, x in enumerate(columns[name])] for name, change in changed.items()}
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=mark)
        writer.writerow([*columns, "kind"])
        writer.writerows(zip(*columns.values(), data.target_names[data.target], strict=True))
    return path


def comma(_, x):
    return str(x).replace(".", ",")


def thousands(_, x):
    return f"{200 * x:,.0f}"  # numbers of 1,000 or more have a comma


def german(_, x):
    return thousands(_, x).replace(",", ".")


@pytest.mark.parametrize("mark", [";", "\t"])
def test_decimal_commas(run, tmp_path, mark):
    point = run("fit", flowers(tmp_path / "point.csv"), "--target", "kind", "--json", "-o", "kept").json()
    path = flowers(tmp_path / "comma.csv", mark, length=comma, width=comma)
    assert run("fit", path, "--target", "kind", "--json", "-o", "other").json() == point | {"output": "other"}
    assert point["features"] == 2
    expected = run("predict", "kept", "point.csv").out
    assert run("predict", "kept", "comma.csv").out == run("predict", "other", "point.csv").out == expected
    found = run("predict", "kept", written(tmp_path / "new.csv", 'length,width\n5.1,"3,5"\n'))
    assert "column 'width', row 1: '3,5' is not a number" in found.err
    assert run("predict", "kept", written(tmp_path / "new.csv", "length;width\n5,125;3,25\n")).code == 0


@pytest.mark.parametrize(
    ("mark", "change", "message"),
    [
        (",", comma, "row 1: '5,1' is not a number; write it like 1234.5, or --drop length leaves out the column"),
        (
            ";",
            lambda i, x: x if i % 2 else comma(i, x),
            "row 1: '5,1' has a comma, but other numbers of this column have a point",
        ),
        (";", lambda i, x: "1.020,5" if i == 4 else comma(i, x), "row 5: '1.020,5' is not a number, unlike 149 other"),
        (";", thousands, "row 1: '1,020' is ambiguous: expected 1020 or 1,0200"),
        ("\t", german, "row 1: '1.020' is ambiguous: expected 1020 or 1.0200"),
        (",", lambda _, x: f"{x}%", "row 1: '5.1%' is not a number; write it like 1234.5"),
        (",", lambda _, x: f"$ {1000 * x:,}", "row 1: '$ 5,100.0' is not a number"),
        (",", lambda i, _: f"{1 + i % 12}/{1 + i % 28}/2020", "row 1: '1/1/2020' is not a number"),
        (",", lambda i, x: x if i % 4 else "-", "row 1: '-' is not a number, unlike 112 other rows; correct it"),
        (",", lambda i, x: "?" if i % 3 else x, "row 2: '?' is not a number, unlike 50 other rows"),
        (",", lambda i, _: f"w{i % 100}", "'length': expected at most 75 categories, got 100 in 150 rows; --drop"),
        (
            ",",
            lambda i, _: f"2020-01-{1 + i % 28:02}",
            "'length' contains dates or times; --drop length leaves out the column",
        ),
        (",", lambda i, _: f"2020-01-01T12:{i % 28:02}:00Z", "'length' contains dates or times"),
    ],
)
def test_numeric_columns_are_not_categories(run, tmp_path, mark, change, message):
    found = run("fit", flowers(tmp_path / "bad.csv", mark, length=change), "--target", "kind")
    assert found.code == 1
    assert "bad.csv: column 'length'" in found.err
    assert message in found.err


@pytest.mark.parametrize(
    ("change", "features"),
    [
        (lambda i, _: ("0", "1", "2", "3+")[i % 4], 5),  # codes
        (lambda i, _: ("01", "02", "x1")[i % 3], 4),
        (lambda i, _: f"{i % 18 * 5}-{i % 18 * 5 + 4}", 19),  # ages
        (lambda i, _: f"w{i % 75}", 76),
        # numbers in a column of mostly words
        (lambda i, _: str(500 + i % 32) if i % 32 < 12 else f"Golf {i % 32}", 33),
        (lambda _, x: f" {x} ", 2),
    ],
)
def test_categories_with_digits(run, tmp_path, change, features):
    found = run("fit", flowers(tmp_path / "good.csv", length=change), "--target", "kind", "--json")
    assert found.code == 0, found.err
    assert found.json()["features"] == features


def test_one_word_in_a_file_of_few_rows(run, tmp_path):
    rows = ["1.5,u", "2,v", "-,u", "2.5,v", "3,u", "4,v", "-,u", "4.5,v", "6,u", "-,v"]
    found = run("fit", written(tmp_path / "few.csv", "\n".join(["a,t", *rows])), "--target", "t", "--folds", "2")
    assert "column 'a', row 3: '-' is not a number, unlike 7 other rows" in found.err
    codes = [row.replace("-", "x").replace(".5", "").replace("6", "4") for row in rows]
    written(tmp_path / "codes.csv", "\n".join(["a,t", *codes, *codes]))
    assert run("fit", "codes.csv", "--target", "t", "--folds", "2", "--json").json()["features"] == 5


def test_too_many_categories_are_refused(run, tmp_path):
    def rows(categories, many):
        return "k,t\n" + "".join(f"w{i % categories},{'uv'[i // 2 % 2]}\n" for i in range(many))

    for categories, many, most in ((257, 800, 256), (11, 12, 10), (21, 40, 20)):
        found = run("fit", written(tmp_path / "k.csv", rows(categories, many)), "--target", "t", "--folds", "2")
        assert f"expected at most {most} categories, got {categories} in {many} rows; --drop k" in found.err
        found = run("fit", written(tmp_path / "k.csv", rows(most, many)), "--target", "t", "--folds", "2", "--json")
        assert found.json()["features"] == most


@pytest.mark.parametrize("name", ["", " ", "Unnamed: 0"])
def test_unnamed_column_of_row_numbers_is_refused(run, tmp_path, name):
    rows = [f"{i},{x},{'uv'[i // 20]}" for i, x in enumerate(np.random.default_rng(0).normal(size=40))]
    written(tmp_path / "index.csv", "\n".join([f'"{name}",x,t', *rows]))
    found = run("fit", "index.csv", "--target", "t")
    assert found.code == 1
    assert f"column {name!r} has no name" in found.err
    assert "--drop '" + name + "' leaves out the column" in found.err
    assert run("fit", "index.csv", "--target", "t", "--drop", name, "--json").json()["features"] == 1


def test_files_as_other_programs_write_them(run, tmp_path):
    """Files with semicolons and a byte order mark are read. Categories like 01 and classes like true stay text."""
    rows = [
        ("01", "true", 1.5),
        ("02", "false", 2.5),
        ("x1", "true", 1.0),
        ("01", "false", 3.5),
        ("02", "true", 1.2),
    ] * 8
    text = "\ufeffcode;Name of it;size\r\n" + "".join(f"{a};{b};{c}\r\n" for a, b, c in rows)
    path = written(tmp_path / "semi.csv", text)
    assert run("fit", path, "--target", "Name of it", "--folds", "2", "-o", "kept").code == 0
    found = run("predict", "kept", written(tmp_path / "new.csv", "size,code\n1.5,01\n2,02\n"))
    assert found.code == 0, found.err
    assert found.out.splitlines()[0] == '"Name of it","p_false","p_true"'
    assert {line.split(",")[0] for line in found.out.splitlines()[1:]} <= {'"true"', '"false"'}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        # integer classes that exceed 64 bits stay distinct
        (["12345678901234567890,1", "12345678901234567891,2"] * 4, None),
        (["a,9007199254740993", "b,2"] * 4, None),
        (["None,1", "null,2"] * 4, "4 cells are empty"),
        (["a,1e200", "b,2"] * 4, "expected an absolute value of at most 1e+100, got 1e+200"),
        ([*(["a,1", "b,2"] * 20), "a,7x"], "row 41: '7x' is not a number, unlike 40 other rows"),
        (["v,1", "w,2"] * 4, "a name other than those of the probability columns (p_CLASS)"),
    ],
)
def test_unusual_columns(run, tmp_path, rows, message):
    head = "p_v,x" if "v,1" in rows else "t,x"
    found = run(
        "fit", written(tmp_path / "odd.csv", "\n".join([head, *rows])), "--target", head[:-2], "--folds", "2", "--json"
    )
    if message is None:
        assert found.code == 0, found.err
        assert len(found.json()["classes"]) == 2
        return
    assert found.code == 1
    assert message in found.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "bad.csv: expected a header and rows, got an empty file"),
        (b"\n\n", "bad.csv: expected a header and rows, got an empty file"),
        (b"a,b\n", "got only a header"),
        # row numbers do not count empty lines
        (b"a,b\n1,2\n\n3\n4,5\n", "row 2 has 1 field, but the header has 2"),
        (b"a,b\n1,2\n\xe9,4,5\n", "row 2 has 3 fields, but the header has 2"),
        (b"1,2\n3,4\n5\n", "row 3 has 1 field, but the first row has 2"),
        (b"a,a\n1,2\n", "two columns that are called 'a'"),
        (b"a,,\n1,2,3\n", "two columns that have no name"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "the header is not UTF-8"),
        ("a,b\nn,x\n".encode("utf-16"), "is text in UTF-16; save it as CSV in UTF-8"),
        (b"\xfe\xff" + "a,b\nn,x\n".encode("utf-16-be"), "is text in UTF-16"),
        (b"PK\x03\x04\x14\x00", "is a workbook (.xlsx) or another zip archive; save it as CSV"),
        ("c,a,b\n1,n,x\n2,é,y\n".encode("latin-1"), "column 'a', row 2: not UTF-8; save it as CSV in UTF-8"),
        ("é,b\n1,x\n2,y\n".encode("latin-1"), "the header is not UTF-8"),
        (b"a,B\n1,x\n2,y\n", "did you mean 'B'?"),
        (b"a,b\n1,x\n1,y\n1,x\n1,y\n", "'a' has the same value in every row"),
        (b"a,b\nu,x\nu,y\nu,x\nu,y\n", "'a' has the same value in every row"),
        (b"a,b\n2020-01-01,x\n2020-01-02,y\n2020-01-01,x\n2020-01-02,y\n", "--drop a"),
        (b"b\nx\ny\nx\ny\n", "expected at least one column besides the target, got none"),
        (b"a,b\n1,x\n2,x\n3,x\n4,x\n", "expected two classes or more, got 'x' in every row"),
        (b"a,c\n1,2\n3,4\n", "--target b"),
    ],
)
def test_invalid_csv_files(run, tmp_path, text, message):
    (tmp_path / "bad.csv").write_bytes(text)
    found = run("fit", "bad.csv", "--target", "b", "--folds", "2")
    assert found.code == 1
    assert message in found.err
    assert found.err.count("\n") == 1


@pytest.fixture
def kept(run, tmp_path):
    """Return the path of a saved model. The data that it was fitted to are in iris.csv, in the same folder."""
    flowers(tmp_path / "iris.csv", width=lambda _, x: "wide" if x > 3 else "narrow")
    assert run("fit", "iris.csv", "--target", "kind", "-o", "kept").code == 0
    return tmp_path / "kept"


def test_files_that_are_not_models(run, kept, tmp_path):
    from skops.io import dump

    data = kept.read_bytes()
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    (tmp_path / "text").write_text("hello")
    dump({"format": "another"}, tmp_path / "other")
    dump(load_iris, tmp_path / "function")
    flipped = bytearray(data)
    for at in range(100, len(data), 997):
        flipped[at] ^= 0xFF
    (tmp_path / "flipped").write_bytes(flipped)
    for name, message in (
        ("cut", "model"),
        ("text", "is not a model"),
        ("other", "is not a model"),
        ("function", "is not a model"),
        ("flipped", "softargmax: flipped is "),
        ("absent", "no such file"),
        (".", "folder"),
    ):
        found = run("predict", name, "iris.csv")
        assert found.code == 1
        assert message in found.err
    for output in ("iris.csv", "./iris.csv", "kept", "./kept"):
        assert run("predict", "kept", "iris.csv", "-o", output).code == 2


def exp(parts):
    """Replace the scaler in a model file by a step that would run code."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    parts["estimator"] = make_pipeline(FunctionTransformer(np.exp), parts["estimator"][1])


def part(step, name, value):
    return lambda parts: setattr(parts["estimator"][step], name, value)


CHANGES = [
    exp,
    lambda parts: parts.update(estimator=None),
    lambda parts: parts.update(estimator=parts["estimator"][1]),
    lambda parts: setattr(parts["estimator"], "steps", [3]),
    lambda parts: parts.pop("numbers"),
    lambda parts: parts.update(numbers=3),
    lambda parts: parts.update(numbers=[3]),
    lambda parts: parts.update(numbers=[]),
    lambda parts: parts.update(numbers=["width"]),
    lambda parts: parts.update(target=None),
    lambda parts: parts.update(categories={"width": ["wide", 3]}),
    lambda parts: parts.update(categories={"width": ["wide", "wide"]}),
    lambda parts: parts.update(categories={"width": "ab"}),
    part(0, "mean_", np.zeros(7)),
    part(0, "scale_", np.zeros(3)),
    lambda parts: delattr(parts["estimator"][1], "coef_"),
    part(1, "coef_", np.zeros((3, 2))),
    part(1, "coef_", np.zeros((2, 3))),
    part(1, "coef_", np.full((3, 3), "a")),
    part(1, "intercept_", np.full(3, np.nan)),
    part(1, "classes_", 3),
    part(1, "classes_", np.arange(3)),
    part(1, "classes_", np.array(["a"])),
    part(1, "classes_", np.array(["a", "a", "b"])),
    part(1, "classes_", np.array(["a", "b", "c", "d"])),
    part(1, "alpha", "x"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_models_with_inconsistent_parts(run, kept, change):
    from skops.io import dump, loads

    from softargmax.cli.classify.models import TRUSTED

    parts = loads(kept.read_bytes(), trusted=TRUSTED)
    change(parts)
    dump(parts, kept.parent / "changed")
    found = run("predict", "changed", "iris.csv")
    assert found.code == 1
    assert found.err == "softargmax: changed is damaged: its parts are inconsistent\n"


def numbered(path, start, step):
    """Write the iris data with the numbers start, start + step, .. in place of the lengths."""
    return flowers(path, length=lambda i, _: start + step * i)


@pytest.mark.parametrize(
    ("start", "step", "shown"), [(0, 1, "0, 1, 2, .."), (1, 1, "1, 2, 3, .."), (100, 7, "100, 107")]
)
def test_increasing_integers_give_a_warning(run, tmp_path, start, step, shown):
    path = numbered(tmp_path / "id.csv", start, step)
    found = run("fit", path, "--target", "kind", "--json").json()
    [line] = found["warnings"]
    assert line.startswith(f"column 'length' increases from row to row ({shown}")
    assert line.endswith("--drop length leaves out the column")
    assert "warning: column 'length'" in run("fit", path, "--target", "kind").out
    assert not run("fit", path, "--target", "kind", "--drop", "length", "--json").json()["warnings"]
    assert not run("fit", numbered(tmp_path / "x.csv", 0.5, 1), "--target", "kind", "--json").json()["warnings"]
    assert not run("fit", numbered(tmp_path / "x.csv", 200, -1), "--target", "kind", "--json").json()["warnings"]


def test_file_without_a_header(run, tmp_path):
    path = flowers(tmp_path / "iris.csv")
    report = run("fit", path, "--target", "3", "--json", "-o", "kept").json()
    assert report == run("fit", path, "--target", "kind", "--json", "-o", "kept").json()
    rows = path.read_bytes().split(b"\n", 1)[1]
    bare = tmp_path / "bare.csv"
    for data in (rows, gzip.compress(rows)):
        bare.write_bytes(data)
        assert run("fit", bare, "--target", "3", "--json", "-o", "kept").json() == report
    assert run("fit", bare, "--target", "3", "--drop", "1", "--json", "-o", "kept").json()["features"] == 1
    assert "; accuracy " in run("predict", "kept", bare, "-o", "out.csv").out
    p = np.loadtxt(tmp_path / "out.csv", delimiter=",", skiprows=1, usecols=(1, 2, 3))
    assert p.shape == (150, 3)
    path.write_bytes(b"1,2,kind\n" + rows)  # a header in which two column names are numbers
    assert run("fit", path, "--target", "kind", "--json", "-o", "kept").json() == report
    assert run("fit", path, "--target", "3", "--header", "--json", "-o", "kept").json() == report
