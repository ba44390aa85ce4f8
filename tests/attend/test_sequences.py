"""Results for packed and paged sequences have the same bits as `attention` of each sequence alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.attend.test_values import BACKENDS
from tests.oracle.backends import Backend

import softargmax as s

pytestmark = pytest.mark.sanitize

SLOPES = 2.0 ** -np.arange(1.0, 7.0)
NATIVE = [backend for backend in BACKENDS if backend.implementation == "native"]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True, "sink": np.zeros(4)}, {"window": (3, 1), "softcap": 2.0}, {"slopes": np.arange(4.0)}],
    ids=str,
)
def test_packed_sequences_have_the_bits_of_each_alone(backend: Backend, options: dict[str, Any]) -> None:
    q_bounds, k_bounds = [0, 3, 3, 20, 21], [0, 5, 6, 40, 40]
    q, k, v = draw(21, 4, 6), draw(40, 2, 6, seed=1), draw(40, 2, 3, seed=2)
    scale = np.random.default_rng(3).uniform(0.1, 1.0, (4, 21))
    own = {key: backend.array(x) if isinstance(x, np.ndarray) else x for key, x in options.items()}
    turned = lambda x: backend.array(np.ascontiguousarray(x.transpose(1, 0, 2)))  # noqa: E731
    with backend.using():
        found = backend.back(
            s.attention_varlen(
                *map(backend.array, (q, k, v)), q_bounds, backend.array(k_bounds), scale=backend.array(scale), **own
            )
        )
        assert found.shape == (21, 4, 3)
        for a, b, c, d in zip(q_bounds, q_bounds[1:], k_bounds, k_bounds[1:], strict=False):
            alone = s.attention(
                turned(q[a:b]), turned(k[c:d]), turned(v[c:d]), scale=backend.array(scale[:, a:b].copy()), **own
            )
            np.testing.assert_array_equal(found[a:b].transpose(1, 0, 2), backend.back(alone))
        assert (found[20] == 0).all()  # a sequence without keys
        assert s.attention_varlen(*map(backend.array, (q[:0], k[:0], v[:0])), [0], [0]).shape == (0, 4, 3)


def pages(size: int, lengths: list[int], seed: int = 0) -> tuple[Any, ...]:
    """Return k, v, the pages of k and v in random order, and the page table.

    Entries of the table beyond a sequence's length are out of range on purpose: attention must ignore them.
    """
    rng = np.random.default_rng(seed)
    each = max(-(-n // size) for n in lengths) + 1
    k, v = draw(len(lengths), 2, each * size, 8, seed=seed), draw(len(lengths), 2, each * size, 32, seed=seed + 1)
    table = rng.permutation(len(lengths) * each).reshape(len(lengths), each)
    in_pages = []
    for x in (k, v):
        split = x.transpose(0, 2, 1, 3).reshape(len(lengths) * each, size, 2, x.shape[-1])
        stored = np.empty_like(split)
        stored[table.ravel()] = split
        in_pages.append(stored)
    for row, n in zip(table, lengths, strict=True):
        row[-(-n // size) :] = -7
    return k, v, *in_pages, table


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize("size", [1, 16, 48])
def test_paged_sequences_have_the_bits_of_each_alone(backend: Backend, size: int) -> None:
    lengths = [0, 1, 47, 700]
    k, v, k_pages, v_pages, table = pages(size, lengths)
    q = draw(4, 6, 3, 8, seed=9)
    a = backend.array
    with backend.using():
        found = s.attention_paged(
            a(q), a(k_pages), a(v_pages), a(table), a(lengths), causal=True, sink=a(np.ones(6)), slopes=a(SLOPES)
        )
        wanted = s.attention(
            a(q), a(k), a(v), key_lengths=a(lengths), causal=True, sink=a(np.ones(6)), slopes=a(SLOPES)
        )
        np.testing.assert_array_equal(backend.back(found), backend.back(wanted))
        if size == 16:
            sparse = s.attention_paged(a(q), a(k_pages), a(v_pages), a(table), a(lengths), alpha=1.5, slopes=a(SLOPES))
            plain = s.attention(a(q), a(k), a(v), key_lengths=a(lengths), alpha=1.5, slopes=a(SLOPES))
            np.testing.assert_array_equal(backend.back(sparse), backend.back(plain))


def test_gradients_flow_through_packed_and_paged_attention() -> None:
    torch = pytest.importorskip("torch")
    *_, k_pages, v_pages, table = pages(4, [3, 9])
    q = torch.tensor(draw(2, 2, 1, 8), dtype=torch.float64, requires_grad=True)
    kp, vp, slopes = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (k_pages, v_pages, [0.5, 0.1]))
    assert torch.autograd.gradcheck(
        lambda *x: s.attention_paged(*x[:3], table.tolist(), [3, 9], slopes=x[3]), (q, kp, vp, slopes), fast_mode=True
    )
    packed = [torch.tensor(draw(5, 2, 3, seed=i), dtype=torch.float64, requires_grad=True) for i in range(3)]
    assert torch.autograd.gradcheck(
        lambda *x: s.attention_varlen(*x[:3], [0, 2, 5], [0, 1, 5], causal=True, slopes=x[3]), (*packed, slopes)
    )


BOUNDS = [
    ("cu_q", [0, 2, 4], r"^cu_q: expected bounds from 0 to 5, the length of q, got 0 to 4"),
    ("cu_q", [1, 2, 5], r"^cu_q: expected bounds from 0 to 5, the length of q, got 1 to 5"),
    ("cu_q", [0, 4, 3, 5], r"^cu_q: expected non-decreasing numbers, got some that decrease"),
    ("cu_k", [0, 7, 6], r"^cu_k: expected non-decreasing numbers, got some that decrease"),
    ("cu_k", [0, 6], r"^cu_k: expected 3 bounds, as in cu_q, got 2"),
    ("cu_k", [0, 3, 7], r"^cu_k: expected bounds from 0 to 6, the length of k, got 0 to 7"),
]


@pytest.mark.parametrize(("name", "value", "words"), BOUNDS)
def test_wrong_bounds(name: str, value: list[int], words: str) -> None:
    bounds = {"cu_q": [0, 2, 5], "cu_k": [0, 3, 6], name: value}
    with pytest.raises(ValueError, match=words):
        s.attention_varlen(draw(5, 4, 6), draw(6, 2, 6), draw(6, 2, 3), bounds["cu_q"], bounds["cu_k"])


def test_bounds_are_integers_and_arrays_have_three_axes() -> None:
    q, k, v = draw(5, 4, 6), draw(6, 2, 6), draw(6, 2, 3)
    with pytest.raises(TypeError, match=r"^cu_q: expected an integer type, got dtype float64"):
        s.attention_varlen(q, k, v, np.array([0.0, 5.0]), [0, 6])
    for arrays, name in (((q[0], k, v), "q"), ((q, k[0], v), "k"), ((q, k, v[0]), "v")):
        with pytest.raises(ValueError, match=rf"^{name}: expected shape"):
            s.attention_varlen(*arrays, [0, 5], [0, 6])


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("q", draw(2, 4, 8), ValueError, r"^q: expected shape \(batch, heads, length, width\), got \(2, 4, 8\)"),
        (
            "k_pages",
            draw(9, 4, 2, 7),
            ValueError,
            r"^k_pages: expected shape \(pages, page size, heads, 8\), got \(9, 4, 2, 7\)",
        ),
        ("k_pages", draw(9, 4, 3, 8), ValueError, r"^(k_pages: 3 heads|v_pages)"),
        (
            "v_pages",
            draw(9, 4, 1, 5),
            ValueError,
            r"^v_pages: expected shape \(9, 4, 2, 'width'\), like k_pages, got \(9, 4, 1, 5\)",
        ),
        (
            "page_table",
            np.zeros((3, 4), int),
            ValueError,
            r"^page_table: expected shape \(2, pages of an entry\), got \(3, 4\)",
        ),
        ("page_table", np.zeros((2, 4)), TypeError, r"^page_table: expected integers, got dtype"),
        ("page_table", np.array([[0, 9, 0], [0, 0, 0]]), IndexError, r"^page_table: expected pages from 0 to 8, got 9"),
        (
            "page_table",
            np.array([[0, -1, 0], [0, 0, 0]]),
            IndexError,
            r"^page_table: expected pages from 0 to 8, got -1",
        ),
        ("lengths", np.array([13, 1]), ValueError, r"^lengths: .* 0 to 12"),
        ("lengths", np.array([-1, 1]), ValueError, r"^lengths: "),
        ("lengths", np.array([1.0, 1.0]), TypeError, r"^lengths: expected integers, got dtype"),
    ],
)
def test_wrong_pages(backend: Backend, name: str, value: Any, error: type[Exception], words: str) -> None:
    arguments = {
        "q": draw(2, 4, 1, 8),
        "k_pages": draw(9, 4, 2, 8),
        "v_pages": draw(9, 4, 2, 5),
        "page_table": np.zeros((2, 3), int),
        "lengths": np.array([6, 1]),
        name: value,
    }
    with backend.using(), pytest.raises(error, match=words):
        s.attention_paged(*map(backend.array, arguments.values()))


@pytest.mark.parametrize("backend", NATIVE, ids=str)
@given(data=st.data())
def test_arbitrary_page_tables_are_safe(backend: Backend, data: st.DataObject) -> None:
    """Any page table and any lengths give a finite result or an error. The sanitizers find invalid memory accesses."""
    table = data.draw(st.lists(st.integers(-3, 12), min_size=6, max_size=6))
    lengths = data.draw(st.lists(st.integers(-2, 14), min_size=2, max_size=2))
    with backend.using():
        given_ = map(backend.array, (draw(2, 2, 1, 8), draw(9, 4, 2, 8), draw(9, 4, 2, 8)))
        try:
            found = s.attention_paged(*given_, backend.array(np.reshape(table, (2, 3))), lengths)
        except (ValueError, IndexError):
            return
        assert np.isfinite(backend.back(found)).all()


@pytest.mark.parametrize("backend", NATIVE, ids=str)
@given(data=st.data())
def test_arbitrary_bounds_are_safe(backend: Backend, data: st.DataObject) -> None:
    bounds = [data.draw(st.lists(st.integers(-2, 9), min_size=3, max_size=3)) for _ in range(2)]
    with backend.using():
        try:
            found = s.attention_varlen(*map(backend.array, (draw(7, 2, 3), draw(8, 1, 3), draw(8, 1, 2))), *bounds)
        except ValueError:
            return
        assert np.isfinite(backend.back(found)).all()
