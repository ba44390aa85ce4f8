"""The parts of the rows in which last layers are computed. The bits of dW and db do not depend on most of them."""

from __future__ import annotations

import numpy as np
import pytest

import softargmax
from softargmax.core import _native

CHAIN = 512
"""A product adds up sums over so many rows, in their order (core/cpp/matmul.hpp)."""
SCORES = 1 << 21
"""A part may always have so many scores."""


@pytest.mark.parametrize("classes", [1, 1000, 4096, 4097, 9001, 50_000, 1 << 20, 1 << 22])
@pytest.mark.parametrize("rows", [0, 1, 13, 511, 512, 513, 700, 1024, 1400, 5632, 6000, 8192, 100_000])
def test_cuts(rows: int, classes: int) -> None:
    """Parts have multiples of 512 rows, or are parts of 512 rows. They need no more memory than documented, and there
    are few of them, since each reads all of W.
    """
    for width in (0, 8, 4096, 10_000):
        for parts in (11, 22, 44):
            bounds = _native.bounds_of_parts(rows, width, classes, parts)
            most, sizes = max(-(-rows // parts), SCORES // classes, width // 8, 1), np.diff(bounds)
            assert (bounds[0], bounds[-1]) == (0, rows)
            assert (sizes > 0).all()
            assert sizes.max(initial=0) <= most
            assert len(sizes) <= 2 * -(-rows // most) + 1
            if most < CHAIN:
                assert {*range(0, rows, CHAIN)} <= {*bounds}
            else:
                assert not any(start % CHAIN for start in bounds[:-1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "classes"), [(700, 500), (1400, 4000), (6500, 4000)])
def test_sums_of_512_rows_each(rows: int, classes: int, dtype: type) -> None:
    """The gradients of W and the bias have the bits of sums over 512 rows each, in the order of the rows."""
    rng = np.random.default_rng(3)
    h, w, b = (rng.standard_normal(shape).astype(dtype) for shape in ((rows, 6), (classes, 6), classes))
    y = rng.integers(0, classes, rows)
    whole = softargmax.linear_cross_entropy_and_gradient(h, w, y, bias=b, reduction="sum")
    dw, db = np.zeros_like(w), np.zeros_like(b)
    for start in range(0, rows, CHAIN):
        part = slice(start, start + CHAIN)
        found = softargmax.linear_cross_entropy_and_gradient(h[part], w, y[part], bias=b, reduction="sum")
        dw, db = dw + found.dw, db + found.dbias
    np.testing.assert_array_equal(dw, whole.dw)
    np.testing.assert_array_equal(db, whole.dbias)


def test_divergences_of_layers_with_other_widths() -> None:
    """A wide layer alone would be computed in larger parts. Both have the same."""
    rows, classes, widths, rng = 220, 20_000, (3, 900), np.random.default_rng(4)
    alone = [_native.bounds_of_parts(rows, width, classes, 2 * _native.PARTS) for width in widths]
    assert len(alone[0]) > len(alone[1])
    layers = [(rng.standard_normal((rows, n)), rng.standard_normal((classes, n)) / n) for n in widths]
    student, teacher = ([x.astype(np.float32) for x in one] for one in layers)
    found = softargmax.linear_distillation(*student, *teacher, reduction="none")
    z, other = (h.astype(np.float64) @ w.T.astype(np.float64) for h, w in (student, teacher))
    np.testing.assert_allclose(found, softargmax.distillation(z, other, reduction="none"), rtol=1e-4)
