"""The windows, boxes and spans that stream/windows.py computes agree with NumPy's indexing."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softargmax.stream.windows import Form, boxes_of, form_of, parts, spans_of, strides_of, window_of

shapes = st.lists(st.integers(1, 5), max_size=4)


@given(shapes, st.data())
def test_boxes_cover_a_flat_range_once(shape, data):
    size = math.prod(shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    array = np.arange(size).reshape(shape)
    covered = np.full(stop - start, -1)
    for place, box in boxes_of(shape, start, stop):
        values = array[box].reshape(-1)
        assert (covered[place : place + values.size] == -1).all()
        covered[place : place + values.size] = values
    assert covered.tolist() == list(range(start, stop))


@given(shapes, st.integers(1, 40), st.integers(0, 20), st.data())
def test_spans_hold_the_box_once(shape, most, near, data):
    array = np.arange(math.prod(shape)).reshape(shape)
    box = []
    for size in shape:
        start = data.draw(st.integers(0, size))
        box.append(slice(start, data.draw(st.integers(start, size))))
    box = tuple(box)
    window = np.full(array[box].shape, -1)
    strides = [array.itemsize * stride for stride in strides_of(shape)]
    for span in spans_of(shape, box, most, near):
        stretch = array.reshape(-1)[span.start : span.start + span.length]
        part = window[(*span.part, ...)]
        assert (part == -1).all()
        assert stretch.size == span.length
        assert span.length <= most or span.length == part.size
        part[...] = np.lib.stride_tricks.as_strided(stretch, part.shape, strides)
        # the first and last element of a span belong to the box
        assert part.reshape(-1)[[0, -1]].tolist() == [stretch[0], stretch[-1]]
    assert (window == array[box]).all()


def test_spans_of_common_windows():
    def cuts(*arguments):
        return [(span.start, span.length) for span in spans_of(*arguments)]

    # a contiguous range may exceed the limit
    assert cuts((100, 50), (slice(10, 90), slice(0, 50)), 64, 8) == [(500, 4000)]
    assert cuts((4, 1000), (slice(0, 4), slice(5, 10)), 10**6, 8) == [(5, 5), (1005, 5), (2005, 5), (3005, 5)]
    assert cuts((4, 10), (slice(0, 4), slice(5, 10)), 10**6, 8) == [(5, 35)]
    assert cuts((4, 10), (slice(0, 4), slice(5, 10)), 16, 8) == [(5, 15), (25, 15)]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans(), st.data())
def test_a_form_has_the_rows_that_moveaxis_gives(shape, fortran, data):
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, len(shape) - 1)))))
    order = tuple(range(len(shape)))[:: -1 if fortran else 1]
    form = form_of(shape, order, axes)
    array = np.arange(math.prod(shape)).reshape(shape)
    if form is None:
        return
    assert math.prod(form) == array.size
    seen = array.transpose(order).reshape(form)
    rows = np.moveaxis(seen, 1, 2).reshape(-1, form.length)
    kept = [dim for dim in order if dim not in axes]
    expected = array.transpose([*kept, *axes]).reshape(-1, form.length)
    assert rows.tolist() == expected.tolist()


def test_forms_of_common_files():
    assert form_of((5, 7), (0, 1), (1,)) == Form(5, 7, 1)
    assert form_of((5, 7), (0, 1), (0,)) == Form(1, 5, 7)
    assert form_of((5, 7), (1, 0), (0,)) == Form(7, 5, 1)
    assert form_of((2, 5, 7), (0, 1, 2), (1,)) == Form(2, 5, 7)
    assert form_of((2, 5, 7), (0, 1, 2), (0, 2)) is None
    # the elements of a row are in C order, but the elements of the file are in Fortran order
    assert form_of((5, 7), (1, 0), (0, 1)) is None
    assert form_of((5, 1, 7), (0, 1, 2), (0, 2)) == Form(1, 35, 1)


@given(
    st.builds(Form, st.integers(1, 50), st.integers(1, 20_000), st.integers(1, 3000)),
    st.integers(0, 1 << 20),
    st.sampled_from([2, 4, 8]),
)
def test_windows_fit_and_are_cut_at_blocks(form, elements, itemsize):
    window = window_of(form, elements, 4096, itemsize)
    assert all(1 <= one <= all_ for one, all_ in zip(window, form, strict=True))
    assert math.prod(window) <= max(elements, min(form.length, 4096))
    assert window.length == form.length or window.length % 4096 == 0
    if window.length < form.length:
        assert window.outer == 1


@pytest.mark.parametrize(("size", "step"), [(0, 3), (1, 1), (7, 3), (9, 3)])
def test_parts_cover_a_range(size, step):
    assert [i for part in parts(size, step) for i in range(part.start, part.stop)] == list(range(size))
