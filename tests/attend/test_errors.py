"""The errors of attention and their messages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import softargmax as s

pytestmark = pytest.mark.sanitize

Q, K, V = np.ones((2, 4, 3, 5)), np.ones((2, 2, 6, 5)), np.ones((2, 2, 6, 7))
BAD: dict[str, list[tuple[Any, type[Exception], str]]] = {
    "scale": [
        (np.ones((4, 2)), ValueError, r"expected a number, or a shape that broadcasts with the .*got shape \(4, 2\)"),
        (math.nan, ValueError, "a finite number"),
        (math.inf, ValueError, "a finite number"),
        ("1", TypeError, "number"),
    ],
    "causal": [(1, TypeError, "True or False"), (None, TypeError, "True or False")],
    "window": [
        (3, TypeError, r"\(left, right\)"),
        ((1, 2, 3), TypeError, r"\(left, right\)"),
        ((-1, 0), ValueError, "0 or above"),
        ((1.5, 0), TypeError, "an integer"),
        ((True, 0), TypeError, "an integer"),
    ],
    "mask": [
        (
            np.ones((3, 6)),
            TypeError,
            r"expected bool, True where a query sees a key \(to add numbers, use bias\), got dtype (torch.)?float64",
        ),
        (np.ones((3, 5), bool), ValueError, r"expected a shape that broadcasts to \(2, 4, 3, 6\), got \(3, 5\)"),
        (np.ones((3, 2, 4, 3, 6), bool), ValueError, r"that broadcasts to \(2, 4, 3, 6\), got \(3, 2, 4, 3, 6\)"),
    ],
    "bias": [
        (np.ones((4, 6)), ValueError, r"expected a shape that broadcasts to \(2, 4, 3, 6\), got \(4, 6\)"),
        (np.ones(6, complex), TypeError, "complex128"),
    ],
    "softcap": [(0.0, ValueError, "above 0"), (-1.0, ValueError, "above 0"), ("1", TypeError, "above 0")],
    "sink": [
        (np.ones(2), ValueError, r"expected one number per head, shape \(4,\), got shape \(2,\)"),
        (np.ones((1, 4)), ValueError, "per head"),
    ],
    "slopes": [
        (np.ones(3), ValueError, r"expected one number per head, shape \(2, 4\), got shape \(3,\)"),
        (np.ones((4, 3)), ValueError, "per head"),
        (np.ones(4, complex), TypeError, "complex128"),
        ("1", TypeError, ""),
    ],
    "alpha": [(0.0, ValueError, "above 0"), (math.nan, ValueError, "above 0"), (np.ones(5), ValueError, "shape")],
    "key_lengths": [
        ([3.0, 1.0], TypeError, "integers"),
        ([3, 7], ValueError, "from 0 to 6"),
        ([-1, 6], ValueError, "from 0 to 6"),
        ([1, 2, 3], ValueError, r"expected a shape that broadcasts to the batch's, \(2,\), got \(3,\)"),
    ],
}
CASES = [(name, *case) for name, cases in BAD.items() for case in cases]


@pytest.mark.parametrize(("name", "value", "error", "words"), CASES)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_errors_name_the_argument(library: str, name: str, value: Any, error: type[Exception], words: str) -> None:
    qkv: list[Any] = [Q, K, V]
    if library == "torch":
        torch = pytest.importorskip("torch")
        qkv, value = list(map(torch.tensor, qkv)), torch.tensor(value) if isinstance(value, np.ndarray) else value
        words = words.replace("float64", "torch.float64")
    with pytest.raises(error, match=rf"^{name}: .*{words}|^{name}: {words}"):
        s.attention(*qkv, **{name: value})


@pytest.mark.parametrize(
    ("q", "k", "v", "error", "words"),
    [
        (Q[0, 0], K, V, ValueError, r"^q: expected shape \(..., heads, length, width\), got \(3, 5\)"),
        (
            Q,
            K[..., :4],
            V,
            ValueError,
            r"^k: expected shape \(..., heads, keys, 5\) with broadcastable leading axes, .*got \(2, 2, 6, 4\)",
        ),
        (
            Q,
            np.concatenate([K, K[:1]]),
            V,
            ValueError,
            r"^k: expected shape \(..., heads, keys, 5\) with broadcastable leading axes, .*got \(3, 2, 6, 5\)",
        ),
        (
            Q,
            K,
            V[:, [0, 1, 1]],
            ValueError,
            r"^v: expected shape \(..., heads, 6, width\) with broadcastable leading axes, .*got \(2, 3, 6, 7\)",
        ),
        (
            Q,
            K,
            V[:, :, :5],
            ValueError,
            r"^v: expected shape \(..., heads, 6, width\) with broadcastable leading axes, .*got \(2, 2, 5, 7\)",
        ),
        (Q[:, :3], K, V, ValueError, r"^k: expected 3 heads, as in q, or a divisor of 3, got 2"),
        (Q, K[:, :0], V[:, :0], ValueError, r"^k: expected 4 heads, as in q, or a divisor of 4, got 0"),
        (Q, K.astype("f4"), V, TypeError, r"float32"),
        (
            Q + 1j,
            K,
            V,
            TypeError,
            r"^q: expected dtype float16, bfloat16, float32, float64, an integer or bool, got complex128",
        ),
        (Q, "k", V, TypeError, r"^k: "),
    ],
)
def test_shapes_that_do_not_match(q: Any, k: Any, v: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        s.attention(q, k, v)


def test_other_orders_have_no_lse() -> None:
    with pytest.raises(TypeError, match="alpha"):
        s.attention_with_lse(Q, K, V, alpha=1.5)  # type: ignore[call-arg]


@pytest.mark.parametrize("shape", [(0, 4, 3, 5), (2, 0, 3, 5), (2, 4, 0, 5), (2, 4, 3, 0)])
def test_empty_arrays(shape: tuple[int, ...]) -> None:
    q, k = np.ones(shape), np.ones((shape[0], min(shape[1], 2), 6, shape[3]))
    v = np.ones((*k.shape[:-1], 7))
    found = s.attention_with_lse(q, k, v)
    assert found.output.shape == (*shape[:-1], 7)
    assert found.lse.shape == shape[:-1]
    none = s.attention_with_lse(q, k[..., :0, :], v[..., :0, :])
    np.testing.assert_array_equal(none.output, np.zeros((*shape[:-1], 7)))
    np.testing.assert_array_equal(none.lse, np.full(shape[:-1], -math.inf))
