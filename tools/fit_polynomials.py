"""Fit the polynomials of `core/cpp/math.hpp` and print them as C++. Run this program by hand. It needs mpmath.

exp: q(r) = (e^r - 1 - r) / r^2 on |r| <= ln2 / 2, so that e^r = 1 + (r + r^2 q(r)).
log: w with atanh(s) / s = 1 + s^2 w(s^2) on |s| <= 3 - 2 sqrt 2, because log(1 + x) = 2 atanh(s) for s = x / (2 + x).

Each polynomial is a weighted least-squares fit at Chebyshev nodes, in 60 digits. Its error is at most twice that of the
minimax polynomial, and far below one rounding error. The constant term is rounded to the target type first. Then the
other coefficients are fitted again, the next coefficient is rounded, and so on.
"""

from collections.abc import Callable

import mpmath as mp
import numpy as np

Function = Callable[[mp.mpf], mp.mpf]

mp.mp.dps = 60


def fit(f: Function, weight: Function, degree: int, low: mp.mpf, high: mp.mpf, kind: type) -> list[float]:
    """Return the coefficients of a polynomial fitted to f on [low, high], rounded to `kind`, constant term first."""
    count = 4 * degree + 9
    nodes = [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]
    fixed: list[float] = []
    while len(fixed) <= degree:
        powers = range(len(fixed), degree + 1)
        matrix = mp.matrix([[weight(x) * x**j for j in powers] for x in nodes])
        right = mp.matrix([weight(x) * (f(x) - mp.polyval([*fixed[::-1], 0][:-1] or [0], x)) for x in nodes])
        fixed.append(float(kind(float(mp.qr_solve(matrix, right)[0][0]))))
    return fixed


def main() -> None:
    """Print each polynomial, and the largest relative error of e^r or atanh(s) / s computed with it."""
    edge = mp.log(2) / 2 * mp.mpf("1.0001")
    q = lambda r: (mp.expm1(r) - r) / r**2  # noqa: E731
    kinds = (("float", np.float32, 4), ("float", np.float32, 5), ("double", np.float64, 9), ("double", np.float64, 10))
    for name, kind, degree in kinds:
        c = fit(q, lambda r: r * r / mp.exp(r), degree, -edge, edge, kind)
        error = max(
            abs((1 + r + r * r * mp.polyval(c[::-1], r)) / mp.exp(r) - 1) for r in mp.linspace(-edge, edge, 2000)
        )
        print(f"exp {name} degree {degree}: relative error 2^{float(mp.log(error, 2)):.2f}")
        print("  " + ", ".join(kind(x).item().hex() for x in c))
    top = (3 - 2 * mp.sqrt(2)) ** 2 * mp.mpf("1.001")
    w = lambda u: (mp.atanh(mp.sqrt(u)) / mp.sqrt(u) - 1) / u if u > mp.mpf(10) ** -40 else mp.mpf(1) / 3  # noqa: E731
    for degree in (6, 7, 8):
        c = fit(w, lambda u: u, degree, mp.mpf(0), top, np.float64)
        error = max(
            abs((1 + u * mp.polyval(c[::-1], u)) / (mp.atanh(mp.sqrt(u)) / mp.sqrt(u)) - 1)
            for u in mp.linspace(top / 2000, top, 2000)
        )
        print(f"log double degree {degree}: relative error 2^{float(mp.log(error, 2)):.2f}")
        print("  " + ", ".join(x.hex() for x in c))


if __name__ == "__main__":
    main()
