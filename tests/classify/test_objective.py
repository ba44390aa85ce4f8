"""The derivatives of softmax regression's objective equal finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from softargmax.classify.objective import Objective
from softargmax.classify.rows import Training


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_derivatives(alpha: float, classes: int) -> None:
    """Gradient and Hessian equal finite differences, with weights, penalty and intercept."""
    rng = np.random.default_rng(0)
    X, y, w = rng.standard_normal((60, 3)), rng.integers(0, classes, 60), rng.uniform(0.5, 2, 60)
    f = Objective(Training(X, y, w), classes, alpha=alpha, l2=0.3, intercept=True)
    at, along = rng.standard_normal((2, *f.shape)) * 0.3
    h = 1e-6
    gradients = [f.value_and_gradient(at + s * h * along) for s in (1, -1)]
    _, gradient = f.value_and_gradient(at)
    assert (gradients[0][0] - gradients[1][0]) / (2 * h) == pytest.approx(np.vdot(gradient, along), rel=1e-6)
    difference = (gradients[0][1] - gradients[1][1]) / (2 * h)
    np.testing.assert_allclose(f.hessian_at(at)(along), difference, rtol=1e-5, atol=1e-6)
