"""Text tables, read in the same way by every subcommand."""

import gzip

import numpy as np
import pytest

import softargmax

Z = np.array([[1.5, 2.0, 3.0], [0.0, 1.0, -1.25]])
FORMATS = {
    "comma.csv": "name,a,b,c\nx,1.5,2,3\ny,0,1,-1.25\n",
    "semicolon.csv": "name;a;b;c\nx;1,5;2;3\ny;0;1;-1,25\n",
    "tabs.csv": "name\ta\tb\tc\nx\t1.5\t2\t3\ny\t0\t1\t-1.25\n",
    "tabs.tsv": "name\ta\tb\tc\nx\t1,5\t2\t3\ny\t0\t1\t-1,25\n",
    "spaces.txt": "name a b c\nx 1.5 2 3\ny 0 1 -1.25\n",
    "quoted.csv": '"name","a","b","c"\n"x; y","1.5","2","3"\n"y","0","1","-1.25"\n',
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("columns", ["a,b,c", "2,3,4", "a, 3 ,c"])
def test_tables_in_all_text_formats(run, tmp_path, name, packed, columns):
    data = FORMATS[name].encode()
    path = name + ".gz" * packed
    (tmp_path / path).write_bytes(gzip.compress(data) if packed else data)
    for done in (run(path, "--columns", columns, "--json"), run("-", "--columns", columns, "--json", stdin=data)):
        assert (done.code, done.json()["values"]) == (0, Z.tolist())


def test_columns_come_in_the_requested_order(run, tmp_path):
    (tmp_path / "z.csv").write_text(FORMATS["comma.csv"])
    assert run("z.csv", "--columns", "c,a", "--json").json()["values"] == Z[:, [2, 0]].tolist()
    assert run("entropy", "z.csv", "--columns", "b", "--json").json()["values"] == Z[:, 1].tolist()
    found = run("plot", "z.csv", "--columns", "b", "-o", "f.png", "--json").json()
    assert found["values"] == Z[:, 1].tolist()


def test_result_has_the_header(run, tmp_path):
    (tmp_path / "z.csv").write_text(FORMATS["semicolon.csv"])
    for words in (["softmax"], ["sparsemax"]):
        assert run(*words, "z.csv", "--columns", "a,b,c", "-o", "p.csv").code == 0
        assert (tmp_path / "p.csv").read_text().startswith("a,b,c\n")
        found = np.array(run("p.csv", "--json").json()["values"])
        assert found.tobytes() == getattr(softargmax, words[0])(Z).tobytes()


@pytest.mark.parametrize("head", ["a,b", "a 1,b", ",b"])
def test_space_separated_output_is_read_back(run, tmp_path, head):
    (tmp_path / "z.csv").write_text(f"{head}\n1,2\n3,4\n")
    expected = run("z.csv", "--json").json()["probabilities"]
    assert run("z.csv", "-o", "p.txt").code == 0
    assert run("p.txt", "--json").json()["values"] == expected
    assert (tmp_path / "p.txt").read_text().startswith("a b\n") == (head == "a,b")


def test_results_of_other_shapes_have_no_header(run, tmp_path):
    (tmp_path / "z.csv").write_text("a,b\n1,2\n3,4\n")
    assert run("sample", "z.csv", "-n", "2", "-o", "p.csv").code == 0  # the draws have the table's shape by accident
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 2
    (tmp_path / "z.csv").write_text("a\n1\n2\n")
    assert run("logsumexp", "z.csv", "-o", "p.csv").code == 0
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 1


def test_header_detection_and_option(run, tmp_path):
    (tmp_path / "years.csv").write_text("2019,2020\n1,2\n")
    assert run("years.csv", "--json").json()["values"] == [[2019, 2020], [1, 2]]
    assert run("years.csv", "--header", "--json").json()["values"] == [1, 2]
    assert run("years.csv", "--header", "--columns", "2020,1", "--json").json()["values"] == [2, 1]
    (tmp_path / "words.csv").write_text("a,b\n1,2\n")
    assert run("words.csv", "--json").json()["values"] == [1, 2]
    done = run("words.csv", "--no-header")
    assert (done.code, "line 1, column 1: 'a' is not a number" in done.err) == (1, True)
    (tmp_path / "names.csv").write_text("ann,1\nbob,2\n")
    assert run("names.csv", "--columns", "2", "--json").json()["values"] == [1, 2]


@pytest.mark.parametrize("columns", ["d", "0", "5", "a,d"])
def test_missing_columns(run, tmp_path, columns):
    (tmp_path / "z.csv").write_text(FORMATS["comma.csv"])
    done = run("z.csv", "--columns", columns)
    word = columns.rpartition(",")[2]
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert done.err.startswith(f"softargmax: --columns {word}: z.csv has no such column; expected one of ")
    np.save(tmp_path / "z.npy", Z)
    assert run("z.npy", "--columns", "1").code == 2


MAPS = {
    "softmax": (["--temperature", "2", "--base", "3"], lambda z: softargmax.softmax(z, temperature=2.0, base=3.0)),
    "logsumexp": (["-t", "2", "-b", "3"], lambda z: softargmax.logsumexp(z, temperature=2.0, base=3.0)),
    "entropy": (["-t", "2", "--base", "3"], lambda z: softargmax.entropy(z, temperature=2.0, base=3.0)),
    "sparsemax": ([], softargmax.sparsemax),
    "entmax": (["--alpha", "1.3"], lambda z: softargmax.entmax(z, 1.3)),
    "top-k": (["-k", "2", "-t", "3"], lambda z: softargmax.topk_softmax(z, 2, temperature=3.0)),
    "sample": (
        ["-n", "50", "--seed", "7", "--top-k", "2", "--top-p", "0.9", "-t", "3"],
        lambda z: softargmax.categorical(z, num_samples=50, seed=7, top_k=2, top_p=0.9, temperature=3.0),
    ),
}


@pytest.mark.parametrize("name", MAPS)
def test_all_functions_on_numbers_and_files(run, tmp_path, name):
    options, function = MAPS[name]
    (tmp_path / "z.csv").write_text(FORMATS["comma.csv"])
    np.save(tmp_path / "z.npy", Z)
    expected = np.asarray(function(Z))
    assert run(name, "z.npy", *options, "-o", "p.npy").code == 0
    assert np.load(tmp_path / "p.npy").tobytes() == expected.tobytes()
    assert run(name, "z.csv", "--columns", "2,3,4", *options, "-o", "p.csv", "--no-header").code == 1
    assert run(name, "z.csv", "--columns", "2,3,4", *options, "-o", "p.csv").code == 0
    head = expected.shape == Z.shape
    found = np.loadtxt(tmp_path / "p.csv", delimiter=",", skiprows=int(head), dtype=expected.dtype)
    assert found.tobytes() == expected.tobytes()
    report = run(name, "-1", "2", "2.5", *options, "--json").json()
    key = {"logsumexp": name, "entropy": name, "sample": "places"}.get(name, "probabilities")
    assert np.array(report[key]).tolist() == np.asarray(function(np.array([-1, 2, 2.5]))).tolist()
    assert run(name, "-1", "2", "2.5", *options).code == 0


def test_axis_option_of_maps(run, tmp_path):
    np.save(tmp_path / "z.npy", Z)
    for name in ("sparsemax", "entmax", "entropy", "logsumexp"):
        assert run(name, "z.npy", "--axis", "0", "-o", "p.npy").code == 0
        assert np.load(tmp_path / "p.npy").tobytes() == getattr(softargmax, name)(Z, axis=0).tobytes()


def test_draws_without_a_seed_differ(run):
    draws = [run("sample", "1", "1", "1", "-n", "99", "--json").json() for _ in range(2)]
    assert draws[0]["seed"] != draws[1]["seed"]
    assert draws[0]["places"] != draws[1]["places"]
    seed = draws[0]["seed"]
    assert run("sample", "1", "1", "1", "-n", "99", "--seed", seed, "--json").json() == draws[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["entmax", "1", "2", "--alpha", "-1"], "alpha: "),
        (["sample", "1", "2", "--top-p", "3"], "top_p: expected a number above 0, at most 1, got 3.0"),
        (["top-k", "1", "2", "--axis", "0,1"], "axis: "),
        (["entropy"], "nothing to do"),
        (["entropy", "1", "-o", "p.xyz"], "p.xyz: expected a name that ends in"),
        (["entmax", "1", "--alhpa", "2"], "entmax has no option --alhpa; did you mean --alpha?"),
        (["sparsemax", "1", "--temperature=2"], "sparsemax has no option --temperature=2\n"),
        (
            ["entropy", "1", "2", "--columns", "1"],
            "--columns, --header: expected only with a text file, got numbers",
        ),
        (["1", "2", "--no-header"], "--columns, --header: expected only with a text file, got numbers"),
        (["plot", "1", "2", "--header"], "--columns, --header: expected only with a text file, got numbers"),
    ],
)
def test_wrong_use_of_maps(run, words, message):
    done = run(*words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
