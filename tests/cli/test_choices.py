"""``softargmax fit --choices``: models of choices from CSV files."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("pyarrow")
from softargmax.classify import ConditionalLogit

rng = np.random.default_rng(0)
OWNER, LABEL = np.repeat(np.arange(80), 3), np.tile(["bus", "car", "train"], 80)
PRICE, HOURS = rng.uniform(1, 5, 240), rng.uniform(1, 3, 240)
UTILITY = (-PRICE - HOURS + rng.gumbel(size=240)).reshape(80, 3)
CHOSEN = (UTILITY.max(axis=1, keepdims=True) == UTILITY).ravel().astype(int)


def table(chosen=CHOSEN, label=LABEL):
    rows = zip(OWNER, label, PRICE, HOURS, chosen, strict=True)
    return "traveller,mode,price,hours,chosen\n" + "\n".join(",".join(map(str, row)) for row in rows)


@pytest.fixture
def fit(run, tmp_path):
    def fit(*options, text=None):
        (tmp_path / "trips.csv").write_text(text or table())
        return run("fit", "trips.csv", "--target", "chosen", "--choices", "traveller", *options)

    return fit


def test_the_coefficients_are_those_of_the_library(fit):
    found = fit("--alternatives", "mode", "--json").json()
    X = np.column_stack([PRICE, HOURS])
    model = ConditionalLogit().fit(X, CHOSEN, OWNER, alternatives=LABEL)
    assert found["coefficients"]["names"] == ["price", "hours", "car", "train"]
    np.testing.assert_allclose(found["coefficients"]["coef"], model.coef_, rtol=1e-9)
    np.testing.assert_allclose(found["coefficients"]["std_err"], model.summary().std_err, rtol=1e-9)
    assert found["choosers"] == 80
    assert found["likelihood_ratio"]["degrees_of_freedom"] == 4


def test_an_offset_is_a_known_part_of_the_score(fit):
    found = fit("--alternatives", "mode", "--offset", "hours", "--json").json()
    model = ConditionalLogit().fit(PRICE[:, None], CHOSEN, OWNER, alternatives=LABEL, offset=HOURS)
    assert found["coefficients"]["names"] == ["price", "car", "train"]
    np.testing.assert_allclose(found["coefficients"]["coef"], model.coef_, rtol=1e-9)


def test_true_and_false_are_choices(fit):
    words = fit("--drop", "mode", "--json", text=table(CHOSEN.astype(bool))).json()
    assert words["coefficients"] == fit("--drop", "mode", "--json").json()["coefficients"]


def test_the_report(fit):
    found = fit("--drop", "mode")
    assert found.code == 0, found.err
    assert "240 rows, 80 choosers, 2 features" in found.out
    assert "price" in found.out
    assert "McFadden's R2" in found.out


@pytest.mark.parametrize(
    ("options", "text", "code", "message"),
    [
        ((), None, 1, "column 'mode': expected numbers as features of an alternative, got words; --drop mode"),
        (("--drop", "mode"), table(0 * CHOSEN + [1] * 240), 1, "y: expected one choice for each chooser, got 3"),
        (("--drop", "mode"), table(["yes"] * 240), 1, "column 'chosen', row 1: expected 1 for the chosen alternative"),
        (
            ("--alternatives", "modes"),
            None,
            1,
            "--alternatives modes: trips.csv has no such column; did you mean 'mode'?",
        ),
        (("--drop", "mode", "-o", "out.model"), None, 2, "--choices cannot be combined with --model, --output"),
        (("--drop", "mode", "--model", "lda"), None, 2, "--choices cannot be combined with --model"),
        (("--drop", "mode", "--folds", "3"), None, 2, "--choices cannot be combined with"),
        (
            ("--alternatives", "traveller"),
            None,
            1,
            "different columns for --choices and --alternatives, got 'traveller'",
        ),
        (
            ("--drop", "mode", "--offset", "chosen"),
            None,
            1,
            "different columns for --target and --offset, got 'chosen'",
        ),
        (("--offset", "mode"), None, 1, "column 'mode', row 1: 'bus' is not a number"),
    ],
)
def test_bad_input(fit, options, text, code, message):
    found = fit(*options, text=text)
    assert message in found.err
    assert found.code == code


def test_alternatives_without_choices(run, tmp_path):
    (tmp_path / "trips.csv").write_text(table())
    found = run("fit", "trips.csv", "--target", "chosen", "--alternatives", "mode")
    assert (found.code, "expected with --choices only" in found.err) == (2, True)
