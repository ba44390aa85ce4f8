"""Solvers of softmax regression: SciPy's minimisers in coordinates where the problem is well conditioned.

At W = 0 every class has the Hessian (1 / K) (1 - 1 / K) G + l2, where G is the mean of (x, 1)(x, 1)^T. If R^T R is
close to this Hessian, all directions of U = W R^T have about the same curvature, for any scales and correlations of the
features. A fit then takes tens of passes over the data, not hundreds or thousands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.linalg.lapack import dtrtri
from scipy.optimize import minimize
from scipy.sparse.linalg import LinearOperator, cg

if TYPE_CHECKING:
    from collections.abc import Callable

    from softargmax.classify.base import Array
    from softargmax.classify.objective import Objective

DENSE = 2048
"""With more features than this, the coordinates remove only the scales of the features, not their correlations."""
ROWS = 8
"""Number of rows per feature that suffice to estimate correlations."""
MATRICES, PRODUCTS = 1 << 24, 1 << 34
"""Limits for the matrices R, one per class: the number of all entries, and of the multiplications that compute them."""
MEMORY = 10
"""Number of steps that L-BFGS stores."""
LOST = 64.0
"""Changes of the objective by less than this many rounding errors cannot be measured."""
FIRST = 50
"""Number of L-BFGS steps before the first update of the coordinates. The number doubles after each update."""
ROUNDING = 4 * np.finfo(np.float64).eps
"""Relative rounding error of the objective."""
CG = 500
"""Maximum number of products with the Hessian per Newton step."""


class Found(NamedTuple):
    """Result of a solver: the table (see `Objective`), the objective's value, the number of steps, the largest absolute
    derivative, and True if the fit converged.
    """

    table: Array
    value: float
    steps: int
    largest: float
    converged: bool


class Whitened:
    """Coordinates U_k = R_k W_k for each class k, where R_k^T R_k approximates the Hessian's block of class k."""

    def __init__(self, objective: Objective, table: Array | None = None) -> None:
        """Compute R from the Hessian at W = `table`. The default is W = 0, where all classes have the same R."""
        rows = ROWS * objective.shape[1] if table is None else len(objective.target)
        blocks = objective.curvature(table, rows)
        scale = np.sqrt(np.einsum("kii->ki", blocks))
        scale[scale == 0] = 1.0
        size = objective.shape[1]
        rounding = 100 * np.finfo(objective.X.dtype).eps * size**0.5 * np.eye(size)
        self.shape = objective.shape
        self.r = (
            np.linalg.cholesky(blocks / scale[:, :, None] / scale[:, None] + rounding).transpose(0, 2, 1)
            * scale[:, None]
        )
        self.inverse = np.stack([dtrtri(r)[0] for r in self.r])  # takes a third of the time of a general inverse

    def table(self, u: Array) -> Array:
        """Return W, given its coordinates U as a vector."""
        return _times(self.inverse, u.reshape(self.shape))

    def gradient(self, of_table: Array) -> Array:
        """Convert the gradient with respect to W into the gradient with respect to U, a vector."""
        return _times(self.inverse.transpose(0, 2, 1), of_table).reshape(-1)

    def point(self, table: Array) -> Array:
        """Return the coordinates U of W, as a vector."""
        return _times(self.r, table).reshape(-1)


class Scaled:
    """Coordinates U = W R with a diagonal R, for many features.

    W and the vectors are in column-major order, because SciPy's products with sparse matrices copy a row-major W.
    """

    def __init__(self, objective: Objective) -> None:
        self.shape = objective.shape
        self.r = objective.scales()

    def table(self, u: Array) -> Array:
        """Return W, given its coordinates U as a vector."""
        return np.asarray(u.reshape(self.shape, order="F") / self.r)

    def gradient(self, of_table: Array) -> Array:
        """Convert the gradient with respect to W into the gradient with respect to U, a vector."""
        return np.asarray((of_table / self.r).reshape(-1, order="F"))

    def point(self, table: Array) -> Array:
        """Return the coordinates U of W, as a vector."""
        return np.asarray((table * self.r).reshape(-1, order="F"))


def _times(matrices: Array, table: Array) -> Array:
    """Return matrix k times row k of the table, for every k. A single matrix multiplies all rows."""
    if len(matrices) == 1:
        return np.asarray(table @ matrices[0].T)
    return np.asarray((matrices @ table[:, :, None])[:, :, 0])


def first_coordinates(objective: Objective) -> Whitened | Scaled:
    """Return coordinates that are well conditioned at W = 0."""
    return Scaled(objective) if objective.features > DENSE else Whitened(objective)


def _largest(gradient: Array) -> float:
    return max(float(gradient.max(initial=0.0)), -float(gradient.min(initial=0.0)))


def is_affordable(objective: Objective) -> bool:
    """True if one matrix R per class stays within the limits `DENSE`, `MATRICES` and `PRODUCTS`."""
    numbers = objective.free * objective.shape[1] ** 2
    return bool(objective.features <= DENSE and numbers <= MATRICES and numbers * len(objective.target) <= PRODUCTS)


class _Cached:
    """A function that caches its last value, because a minimiser's callback needs the value that was just computed."""

    def __init__(self, function: Callable[[Array], Any]) -> None:
        self.function = function
        self.at: Array | None = None
        self.found: Any = None

    def __call__(self, x: Array) -> Any:
        if self.at is None or not np.array_equal(self.at, x):
            self.at, self.found = x.copy(), self.function(x)
        return self.found


class _Watch:
    """The objective for a minimiser, and a callback that stops it when no derivative with respect to W exceeds tol."""

    def __init__(self, objective: Objective, coordinates: Whitened | Scaled, tol: float) -> None:
        self.objective, self.coordinates, self.tol = objective, coordinates, tol
        self.value, self.largest, self.gain = np.inf, np.inf, np.inf
        self.at: Array | None = None

    def evaluate(self, u: Array) -> tuple[float, Array]:
        self.at = u
        self.value, gradient = self.objective.value_and_gradient(self.coordinates.table(u))
        g = self.coordinates.gradient(gradient)
        # In these coordinates a step of -g lowers the objective by about |g|^2 / 2. `gain` is this decrease divided by
        # the objective.
        self.largest, self.gain = _largest(gradient), 0.5 * float(g @ g) / max(abs(self.value), 1e-300)
        return self.value, g

    def stop(self, intermediate_result: Any) -> None:
        # If the values are equal, the minimiser is at the point evaluated last. Comparing the points would take 4 ms
        # for 2 million numbers.
        if intermediate_result.fun != self.value:
            self.evaluate(intermediate_result.x)
        if self.largest <= self.tol:
            raise StopIteration


def lbfgs(objective: Objective, start: Array, *, tol: float, steps: int) -> Found:
    """Minimise without an l1 penalty by runs of L-BFGS, with new coordinates for each run."""
    coordinates = first_coordinates(objective)
    table, taken, patience = start, 0, FIRST
    while True:
        watch = _Watch(objective, coordinates, tol)
        again = is_affordable(objective)
        now = min(steps - taken, patience) if again else steps - taken
        options = {"maxiter": now, "maxfun": 50 * now, "maxls": 50, "maxcor": MEMORY, "gtol": 0.0, "ftol": 0.0}
        found = minimize(
            watch.evaluate, coordinates.point(table), jac=True, method="L-BFGS-B", callback=watch.stop, options=options
        )
        stuck = found.nit < now and found.nit < 2
        if watch.at is None or not np.array_equal(watch.at, found.x):
            watch.evaluate(found.x)
        table, taken, patience = coordinates.table(found.x), taken + found.nit, 2 * patience
        if watch.largest <= tol or taken >= steps or stuck or not again:
            enough = watch.largest <= tol or watch.gain <= LOST * np.finfo(objective.X.dtype).eps
            if enough or taken >= steps or not again:
                return Found(table, float(found.fun), taken, watch.largest, enough)
            # With almost collinear features the line search fails, but Newton's method does not.
            rest = newton(objective, table, tol=tol, steps=steps - taken)
            return rest._replace(steps=taken + rest.steps)
        coordinates = Whitened(objective, table)


def newton(objective: Objective, start: Array, *, tol: float, steps: int) -> Found:
    """Minimise without an l1 penalty by Newton's method. SciPy's conjugate gradients compute each step."""
    table, first = start, 0.0
    value, gradient = objective.value_and_gradient(table)
    fixed = None if is_affordable(objective) else first_coordinates(objective)
    for taken in range(steps):
        if _largest(gradient) <= tol:
            return Found(table, value, taken, _largest(gradient), True)
        coordinates = fixed or Whitened(objective, table)
        hessian, g = objective.hessian_at(table), coordinates.gradient(gradient)
        size = float(np.linalg.norm(g))
        first = first or size
        operator = LinearOperator(
            (g.size, g.size), lambda v, h=hessian, r=coordinates: r.gradient(h(r.table(v))), dtype=float
        )
        step, _ = cg(operator, -g, rtol=min(0.1, (size / first) ** 0.5), maxiter=CG)
        change, slope, length = coordinates.table(step), float(g @ step), 1.0
        found, its_gradient = objective.value_and_gradient(table + change)
        while found > value + 1e-4 * length * slope and -length * slope > ROUNDING * abs(value):
            length /= 2
            found, its_gradient = objective.value_and_gradient(table + length * change)
        if -length * slope <= ROUNDING * abs(value):  # the expected decrease is below the rounding error
            return Found(table, value, taken, _largest(gradient), True)
        table, value, gradient = table + length * change, found, its_gradient
    return Found(table, value, steps, _largest(gradient), _largest(gradient) <= tol)


def lasso(objective: Objective, start: Array, *, l1: float, tol: float, steps: int) -> Found:
    """Minimise with the penalty l1 |W|_1 by L-BFGS-B, in the coordinates of `Scaled`.

    The variables are P, N >= 0 with W R = P - N. The penalty is a differentiable function of P and N.
    """
    shape, size, r = objective.shape, start[:, :-1].size, Scaled(objective).r[:-1]

    @_Cached
    def look(x: Array) -> tuple[Array, float, Array]:
        """Return the table, and the value and gradient of the objective without the l1 penalty."""
        parts = x[: 2 * size].reshape(2, shape[0], -1)
        table = np.concatenate([(parts[0] - parts[1]) / r, x[2 * size :, None]], axis=1)
        return table, *objective.value_and_gradient(table)

    def value_and_gradient(x: Array) -> tuple[float, Array]:
        _, value, gradient = look(x)
        sides = np.stack([gradient[:, :-1] + l1, l1 - gradient[:, :-1]]) / r
        weights = float((x[: 2 * size].reshape(-1, shape[1] - 1) / r).sum())
        return value + l1 * weights, np.concatenate([sides.reshape(-1), gradient[:, -1]])

    def stop(intermediate_result: Any) -> None:
        table, _, gradient = look(intermediate_result.x)
        if subgradient(table, gradient, l1, r)[0] <= tol:
            raise StopIteration

    w = start[:, :-1] * r
    x = np.concatenate([np.maximum(w, 0).reshape(-1), np.maximum(-w, 0).reshape(-1), start[:, -1]])
    bounds = [(0.0, None)] * (2 * size) + [(None, None)] * shape[0]
    options = {"maxiter": steps, "maxfun": 50 * steps, "maxls": 50, "maxcor": MEMORY, "gtol": 0.0, "ftol": 0.0}
    found = minimize(value_and_gradient, x, jac=True, method="L-BFGS-B", bounds=bounds, callback=stop, options=options)
    table, value, gradient = look(found.x)
    slack, gain = subgradient(table, gradient, l1, r)
    value += l1 * float(np.abs(table[:, :-1]).sum())
    enough = slack <= tol or gain <= LOST * np.finfo(objective.X.dtype).eps * abs(value)
    return Found(table, value, found.nit, slack, enough)


def subgradient(table: Array, gradient: Array, l1: float, r: Array) -> tuple[float, float]:
    """Return the largest absolute entry of the minimum-norm subgradient, and the expected decrease by one step.

    The step is a gradient step in scaled coordinates. `_Watch` explains the decrease.
    """
    w, dw = table[:, :-1], gradient[:, :-1]
    inner = np.where(w == 0, np.maximum(np.abs(dw) - l1, 0), np.abs(dw + l1 * np.sign(w)))
    gain = 0.5 * float(np.square(inner / r).sum() + np.square(gradient[:, -1]).sum())
    return max(_largest(inner), _largest(gradient[:, -1])), gain
