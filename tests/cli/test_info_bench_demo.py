"""The commands info, bench and demo, as text and as JSON."""

import json
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest

import softargmax
from softargmax import measure
from softargmax.cli import bench, cases, demo, file_conversion, info
from softargmax.cli.errors import FailedRunError
from softargmax.cli.tour import STOPS, Stop
from softargmax.core import native
from softargmax.core.extras import install


def test_info_as_json(run):
    facts = run("info", "--json").json()
    assert facts["version"] == softargmax.__version__
    assert facts["native"]["isa"] in facts["native"]["isas"]
    assert facts["native"]["threads"] == softargmax.get_num_threads()
    rows = {
        (row["arrays"], row["implementation"]): row for row in facts["implementations"] if row["room"] == "normalize"
    }
    assert rows["numpy", "native"]["usable"]
    assert rows["numpy", "reference"]["usable"]
    assert facts["packages"]["numpy"] == np.__version__
    assert facts["machine"] == measure.machine()
    assert facts["machine"]["packages"]["numpy"] == np.__version__


def test_info_as_text(run):
    done = run("info")
    assert done.code == 0
    assert f"softargmax {softargmax.__version__}" in done.out
    assert "normalize.native" in done.out


def test_info_gives_reasons_for_unusable_implementations(monkeypatch):
    monkeypatch.setattr(info, "find_spec", lambda _: None)
    row = info.usable("normalize", "torch", "native")
    assert not row["usable"]
    assert row["why"] == f"torch is not installed: {install('torch')}"
    monkeypatch.undo()
    row = info.usable("nowhere", "numpy", "native")
    assert not row["usable"]
    assert "nowhere" in row["why"]


def test_measure_alternates_and_compares():
    calls = []
    case = measure.Case("x", {measure.OURS: lambda: calls.append("a"), "peer": lambda: calls.append("b")}, bytes=100)
    result = measure.measure(case, rounds=4)
    assert result.timings["peer"].samples == 4
    assert result.peers == ["peer"]
    assert result.ratio("peer") == result.timings["peer"].median / result.timings[measure.OURS].median
    limits = measure.Limits(copy_bytes=50.0, multiply_adds=10.0, threads=1)
    assert result.limits(limits) == {"memory": 1.0}
    record = result.as_json(limits)
    json.dumps(record)
    assert record["ratios"] == {"peer": result.ratio("peer")}


def test_measure_takes_at_least_three_samples():
    case = measure.Case("x", {measure.OURS: lambda: sum(range(1000))})
    assert measure.measure(case, rounds=50, seconds=0).timings[measure.OURS].samples == 3
    assert measure.measure(case, rounds=1).timings[measure.OURS].samples == 3


def test_machine_limits_and_versions():
    limits = measure.machine_limits()
    assert limits.copy_bytes > 1e8
    assert limits.multiply_adds > 1e6
    assert measure.machine()["packages"]["numpy"] == np.__version__
    assert measure.package_version("surely-not-installed") is None


def small():
    z = np.zeros((4, 100), np.float32)
    yield measure.Case(
        "tiny", {measure.OURS: lambda: softargmax.softmax(z), "numpy": lambda: np.exp(z)}, bytes=z.nbytes
    )


def test_bench(run, monkeypatch, tmp_path):
    monkeypatch.setitem(cases.ROOMS, "normalize", small)
    done = run("bench", "normalize", "--json", "r.json", "--rounds", "3")
    assert done.code == 0
    assert "tiny" in done.out
    assert "vs numpy" in done.out
    record = json.loads((tmp_path / "r.json").read_text())
    assert set(record) == {"machine", "lacks", "normalize"}
    assert record["normalize"]["cases"][0]["ratios"]["numpy"] > 0
    monkeypatch.setitem(cases.ROOMS, "loss", small)
    done = run("bench", "--json", "-", "--rounds", "3", "--size", "4M", "--memory", "1M")
    assert set(done.json()) == {"machine", "lacks", "normalize", "loss", "stream"}


def test_bench_says_what_the_run_lacks(run, monkeypatch):
    isas = {"x86-64-v4": False, "x86-64-v3": True, "baseline": True}
    monkeypatch.setattr(bench, "find_spec", lambda name: None if name == "scipy" else True)
    wide, scipy = (
        "x86-64-v4 (16 floats per instruction; not supported by the processor)",
        "the peer scipy (not installed)",
    )
    assert bench.lacks("x86-64-v3", isas, 1) == [wide, "a second thread", scipy]
    assert bench.lacks("x86-64-v3", dict.fromkeys(isas, True), 2) == [
        "x86-64-v4 (16 floats per instruction; another one was selected)",
        scipy,
    ]
    assert bench.lacks("x86-64-v3", {"x86-64-v3": True}, 2) == [
        "x86-64-v4 (16 floats per instruction; not in this build)",
        scipy,
    ]
    assert bench.lacks("neon", {"neon": True}, 2) == [scipy]
    facts = {"version": "1", "isa": "x86-64-v3", "isas": isas, "threads": 1}
    monkeypatch.setattr(native, "info", lambda: facts)
    done = run("bench", "stream", "--size", "1M", "--memory", "1M")
    assert f"This run lacks: {wide}; a second thread" in " ".join(done.out.split())


def test_bench_stream(run):
    done = run("bench", "stream", "--size", "8M", "--memory", "1M")
    assert done.code == 0
    assert "same bits" in done.out


def test_bench_fails_if_bits_differ(run, monkeypatch):
    monkeypatch.setattr(bench.file_conversion, "equal_rows", lambda *_: False)
    done = run("bench", "stream", "--size", "1M", "--memory", "1M")
    assert done.code == 1
    assert "differ" in done.err


@pytest.mark.parametrize("make", [cases.short, *cases.ROOMS.values()])
def test_every_case_runs(make, monkeypatch):
    monkeypatch.setattr(cases, "scores", lambda *shape: np.ones([min(size, 64) for size in shape], np.float32))
    for case in make():
        for name, side in case.sides.items():
            assert side() is not None, (case.name, name)


def test_equal_rows_finds_a_wrong_bit(tmp_path):
    source, target = tmp_path / "z.npy", tmp_path / "p.npy"
    file_conversion.write_scores(source, 1 << 20)
    p = softargmax.softmax(np.load(source))
    np.save(target, p)
    assert file_conversion.equal_rows(source, target)
    p[0, 5] = np.nextafter(p[0, 5], np.float32(1))
    np.save(target, p)
    assert not file_conversion.equal_rows(source, target)


def test_conversion_process_reports_its_failure(tmp_path):
    with pytest.raises(FailedRunError, match="No such file"):
        file_conversion.convert_in_subprocess(tmp_path / "none.npy", tmp_path / "p.npy", 1 << 20)


@pytest.mark.parametrize("stop", [stop.name for stop in STOPS if stop.name != "bench"])
def test_stops_of_the_tour(run, tmp_path, stop, monkeypatch):
    if stop in ("temperature", "digits", "attention"):
        pytest.importorskip("matplotlib")
    words = import_module("softargmax.cli.tour.words")
    monkeypatch.setattr(words, "TOKENS", 60_000)  # a fifth of the tour's tokens, with the same bound on the perplexity
    monkeypatch.setattr(words, "EVALUATED", 1024)
    done = run("demo", "--only", stop, "-o", tmp_path / "out", "--json")
    found = done.json()
    assert done.code == 0
    assert found["ok"]
    assert found["stops"][stop]["ok"]
    assert "skipped" not in found["stops"][stop]


def test_a_process_of_the_tour_that_fails_is_named(capfd):
    torch_last_layer = import_module("softargmax.cli.tour.torch_last_layer")
    with pytest.raises(FailedRunError, match=r"^process [01] of 2 ended with exit code 1, before it was trained"):
        torch_last_layer.trained_by(2, np.full(2000, 7), 5, 1)  # there is no class 7
    assert "IndexError" in capfd.readouterr().err


def test_tour_as_text(run):
    done = run("demo", "--only", "values", "-o", "out[dim]")
    assert "Its pictures are in out[dim]/" in done.out
    assert done.code == 0
    assert "1. Values that can be checked by hand" in done.out
    assert "passed" in done.out


def test_failed_stop_fails_the_tour(run, monkeypatch):
    wrong = Stop("wrong", "Wrong", lambda *_: {"ok": False})
    monkeypatch.setattr(demo, "STOPS", (*STOPS[:1], wrong))
    done = run("demo")
    assert done.code == 1
    assert done.err == "softargmax: failed stops of the tour: wrong\n"


def without(*modules):
    """Return a Python program that runs the command as if `modules` were not installed."""
    return (
        "import sys\n"
        f"for name in {modules!r}: sys.modules[name] = None\n"
        "from softargmax.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )


@pytest.mark.parametrize(
    ("module", "words", "message"),
    [
        ("typer", ["1", "2"], install("cli")),
        ("rich", ["1", "2"], install("cli")),
        ("matplotlib", ["plot", "1", "2"], install("plot")),
    ],
)
def test_a_missing_extra_is_named(tmp_path, module, words, message):
    done = subprocess.run(
        [sys.executable, "-c", without(module), *words], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_the_command_imports_no_framework(tmp_path):
    script = "import sys\nfrom softargmax.cli import main\nmain(['1', '2'])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    loaded = done.stdout.splitlines()[-1].split()
    assert not {"torch", "jax", "scipy", "sklearn", "matplotlib"} & set(loaded)


@pytest.mark.parametrize("stop", ["values", "temperature", "sparse", "sampling", "attention"])
def test_tables_of_the_tour_fit_80_columns(run, monkeypatch, stop):
    monkeypatch.setenv("COLUMNS", "80")
    done = run("demo", "--only", stop, "-o", "out")
    assert done.code == 0
    assert "…" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80
