"""Calibration reports of Dask arrays: equal to those of arrays in memory, for any chunks."""

from __future__ import annotations

import dataclasses
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from tests.classify.problems import scores

import softargmax
from softargmax.classify import calibration_report

Z, Y = scores(300, 4)
P = softargmax.softmax(Z)
NAMES = np.array(["ant", "bee", "cicada", "dragonfly"])[Y]


@pytest.mark.parametrize("chunks", [(300, 4), (77, 3), ((1, 0, 250, 49), (2, 2))], ids=str)
@pytest.mark.parametrize("options", [{}, {"strategy": "quantile", "bins": 6}, {"seed": 3, "confidence": 0.5}], ids=str)
def test_reports_equal_those_in_memory(chunks: Any, options: dict[str, Any]) -> None:
    expected = dataclasses.asdict(calibration_report(NAMES, P, **options))
    lazy = da.from_array(NAMES, chunks=90), da.from_array(P, chunks=chunks)
    for y, p in (lazy, (NAMES, lazy[1]), (lazy[0], P)):
        with dask.config.set(scheduler="threads"):
            found = dataclasses.asdict(calibration_report(y, p, **options))
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_classes_that_some_chunks_lack() -> None:
    y, p = np.arange(4).repeat(75), da.from_array(P, chunks=(75, 4))
    assert calibration_report(y, p).brier == calibration_report(y, P).brier
    few = np.zeros(300, int)
    assert calibration_report(da.from_array(few, chunks=75), p).accuracy == calibration_report(few, P).accuracy
    given = calibration_report(y, p, classes=[3, 2, 1, 0])
    assert (
        given.log_loss == calibration_report(y, P, classes=[3, 2, 1, 0]).log_loss != calibration_report(y, P).log_loss
    )


def test_errors() -> None:
    bad = P.copy()
    bad[160, 0] = 2.0
    with pytest.raises(ValueError, match=r"^p: chunk 2 \(rows 150 to 224\): p: expected probabilities in every row"):
        calibration_report(Y, da.from_array(bad, chunks=(75, 4)))
    with pytest.raises(ValueError, match=r"^p: chunk 3 \(rows 225 to 299\): y: expected one of"):
        calibration_report(np.where(np.arange(300) == 299, 7, Y), da.from_array(P, chunks=(75, 4)), classes=range(4))
    with pytest.raises(ValueError, match=r"^y: expected one class per row, shape \(300,\), got \(299,\)"):
        calibration_report(Y[1:], da.from_array(P, chunks=(75, 4)))
    with pytest.raises(ValueError, match=r"^p: expected shape \(n, D\), got \(300,\)"):
        calibration_report(Y % 2, da.from_array(P[:, 0], chunks=75))
    with pytest.raises(ValueError, match=r"^p: expected chunks of known sizes"):
        calibration_report(Y, da.from_array(P, chunks=(75, 4))[da.from_array(Y, chunks=75) > 0])
