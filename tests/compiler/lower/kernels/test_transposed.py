"""Copies of transposed arrays, and weights that are packed from them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterocc.compiler.lower.arranged import block, in_layout, layout
from heterocc.compiler.lower.cpu.generate.layouts import layout_of
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.tiles import runs
from heterocc.compiler.lower.kernels.transposed import before_transposing, contiguous, in_order, of_transposed, repacked
from tests.few_examples import few


def array(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_the_array_before_the_transposition_is_found(order: tuple[int, ...]) -> None:
    transposed = array(3, 4, 5).transpose(order)
    constant, found = before_transposing(transposed)
    assert constant.flags.c_contiguous and np.shares_memory(constant, transposed)
    np.testing.assert_array_equal(constant if found is None else constant.transpose(found), transposed)
    assert (found is None) == (order == (0, 1, 2))


@pytest.mark.parametrize(
    "view",
    [array(4, 6)[::-1], array(4, 6)[:, ::2], array(4, 6)[:, 1:3].T, np.broadcast_to(array(6), (4, 6))],
    ids=["reversed", "every second", "a part", "broadcast"],
)
def test_other_views_are_no_transpositions(view: np.ndarray) -> None:
    assert before_transposing(view)[1] is None
    np.testing.assert_array_equal(contiguous(view), view)
    assert contiguous(view).flags.c_contiguous


@given(order=st.permutations(range(4)), shape=st.tuples(*4 * [st.integers(1, 9)]))
@few(40)
def test_copies_have_the_elements_in_order(order: list[int], shape: tuple[int, ...]) -> None:
    transposed = array(*shape).transpose(order)
    made = contiguous(transposed)
    assert made.flags.c_contiguous
    np.testing.assert_array_equal(made, transposed)


@given(rows=st.integers(1, 70), terms=st.integers(1, 40), tile=st.integers(1, 5), transposed=st.booleans())
@few(60)
def test_a_weight_is_packed_from_its_place_in_memory(rows: int, terms: int, tile: int, transposed: bool) -> None:
    packing = Panels(0, (terms, rows), (0, 1), 1, terms, rows, 8, runs(-(-rows // 8), tile))
    weight = array(rows, terms).T if transposed else array(terms, rows)
    made, arranged = repacked(weight, layout_of(packing, weight.shape), packing.apply)
    np.testing.assert_array_equal(made, packing.apply(weight))
    if arranged is not None:
        assert arranged.proven and np.shares_memory(arranged.source, weight)
        assert arranged.source.flags.c_contiguous
        np.testing.assert_array_equal(in_layout(arranged.source, arranged.layout), made)


def test_a_weight_whose_layout_has_no_blocks_is_packed_by_the_packing() -> None:
    weight = array(2, 3)
    made, arranged = repacked(weight, None, np.negative)
    np.testing.assert_array_equal(made, -weight)
    assert arranged is None


@pytest.mark.parametrize("shape", [(700, 513), (512, 512), (3, 2000), (4, 5, 6)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.complex128])
def test_a_transposed_array_is_copied_in_order(shape: tuple[int, ...], dtype: type) -> None:
    array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    order = tuple(reversed(range(len(shape))))
    made = in_order(array, order)
    assert made.flags.c_contiguous
    np.testing.assert_array_equal(made, array.T)


def test_a_layout_of_a_transposed_array_is_one_of_the_array_itself() -> None:
    array = np.arange(24 * 64, dtype=np.float32).reshape(64, 24)  # [N, K], read as [K, N]
    transposed = np.ascontiguousarray(array.T)
    panels = layout((4, 24, 16), [block([(4, 16, 24 * 16), (24, 64, 16), (16, 1, 1)])])
    joined = layout((24 * 64,), [block([(24 * 64, 1, 1)])])
    for wanted in (panels, joined):
        assert wanted is not None
        direct = of_transposed(wanted, array.shape, (1, 0))
        assert direct is not None and direct != wanted
        np.testing.assert_array_equal(in_layout(array, direct), in_layout(transposed, wanted))


def test_a_layout_that_crosses_axes_of_a_transposed_array_is_not_one_of_the_array() -> None:
    crossing = layout((3, 4), [block([(3, 9, 4), (4, 1, 1)])])  # rows of 4 elements, of which some are in two rows of 6
    assert crossing is not None
    assert of_transposed(crossing, (6, 5), (1, 0)) is None
