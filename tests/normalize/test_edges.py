"""Results and gradients of edge rows (empty rows, infinities, NaN) equal the edge table on every backend."""

from __future__ import annotations

import pytest
from tests.oracle.backends import Backend
from tests.oracle.edge_table import ROWS, Row, check, check_gradients, served


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_values(row: Row, backend: Backend) -> None:
    for dtype in backend.dtypes:
        if served(row, backend, dtype):
            check(row, backend, dtype)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_gradients(row: Row, differentiating: Backend) -> None:
    for dtype in differentiating.dtypes:
        if served(row, differentiating, dtype) and "16" not in dtype and not row.overflows:
            check_gradients(row, differentiating, dtype)
