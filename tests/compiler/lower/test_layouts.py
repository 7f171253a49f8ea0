"""Packed weights against the layouts from which a runtime makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterocc.artifacts.manifest import Layout, Weight
from heterocc.artifacts.weights.layouts import arrange, arranged, layout_problem
from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import LARGE, Filter, FilteredPanels
from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import SMALL as SMALL_TILES
from heterocc.compiler.lower.cpu.generate.layouts import layout_of as cpu_layout
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.tiles import runs
from heterocc.compiler.lower.gpu.contraction.filtering import F2, F4, Transformed
from heterocc.compiler.lower.gpu.layouts import layout_of as gpu_layout
from heterocc.compiler.lower.gpu.packed import LanesLast
from heterocc.runtime.native import cpu_api
from tests.few_examples import few

SMALL = st.integers(1, 9)


def weight(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def check(array: np.ndarray, packed: np.ndarray, layout: Layout | None) -> None:
    """Both ways to make the layout give what the compiler packs."""
    assert layout is not None and layout.shape == packed.shape
    record = Weight(dtype=array.dtype.name, shape=array.shape, offset=0, nbytes=array.nbytes, sha256="0" * 64)
    problem = layout_problem(record, layout)
    assert problem in (None, "is too large for its weight")
    native = np.zeros(packed.size, packed.dtype)
    cpu_api.arrange(array, layout, native, threads=2)
    plain = np.zeros(packed.size, packed.dtype)
    arrange(array, layout, plain)
    for made in (native, plain, arranged(array, layout).ravel()):
        if layout.matrix is None:
            np.testing.assert_array_equal(made, packed.ravel())
        else:
            np.testing.assert_allclose(made, packed.ravel(), rtol=1e-6, atol=1e-7)


@given(rows=st.integers(1, 40), terms=SMALL, tile=st.integers(1, 6), lanes=st.sampled_from([1, 4, 8, 16]), outer=SMALL)
@few(40)
def test_panels_of_rows_are_copies_of_blocks(rows: int, terms: int, tile: int, lanes: int, outer: int) -> None:
    count = -(-rows // lanes)
    packing = Panels(0, (outer, rows, terms), (0, 2, 1), outer, terms, rows, lanes, runs(count, tile))
    array = weight(outer, rows, terms)
    check(array, packing.apply(array), cpu_layout(packing, array.shape))


@given(columns=st.integers(1, 70), terms=SMALL, tile=st.integers(1, 4), lanes=st.sampled_from([4, 8, 16]))
@few(40)
def test_panels_of_columns_are_copies_of_blocks(columns: int, terms: int, tile: int, lanes: int) -> None:
    packing = Panels(0, (terms, columns), (0, 1), 1, terms, columns, lanes, runs(-(-columns // lanes), tile))
    array = weight(terms, columns)
    check(array, packing.apply(array), cpu_layout(packing, array.shape))


def filtered(filter_: Filter, outputs: int, inputs: int, tile: int) -> FilteredPanels:
    planes = filter_.planes
    panels = Panels(0, (planes, outputs, inputs), (0, 2, 1), planes, inputs, outputs, 1, runs(outputs, tile))
    return FilteredPanels(panels, filter_)


@pytest.mark.parametrize("filter_", [SMALL_TILES, LARGE], ids=["2x2", "4x4"])
@given(outputs=st.integers(1, 33), inputs=st.integers(1, 20), tile=st.integers(1, 8), depth=st.integers(1, 3))
@few(40)
def test_filtered_weights_are_transforms_of_groups(
    filter_: Filter, outputs: int, inputs: int, tile: int, depth: int
) -> None:
    packing = filtered(filter_, outputs, inputs * depth, tile)
    array = weight(outputs, inputs, *([depth] if depth > 1 else []), 3, 3)
    check(array, packing.apply(array), cpu_layout(packing, array.shape))


@given(
    shape=st.lists(SMALL, min_size=1, max_size=4),
    place=st.integers(0, 3),
    lanes=st.sampled_from([1, 2, 4, 8]),
    least=st.integers(0, 3),
    dtype=st.sampled_from(["float32", "float16", "int8", "float64"]),
)
@few(40)
def test_lanes_last_are_copies_of_blocks(shape: list[int], place: int, lanes: int, least: int, dtype: str) -> None:
    array, packing = weight(*shape, dtype=dtype), LanesLast(min(place, len(shape) - 1), lanes, least)
    check(array, packing.apply(array), gpu_layout(packing, array.shape))


@given(
    outputs=st.integers(1, 20),
    inputs=st.integers(1, 20),
    then=st.one_of(st.none(), st.builds(LanesLast, st.integers(1, 2), st.sampled_from([1, 4, 8]), st.integers(0, 2))),
)
@pytest.mark.parametrize("filtering", [F2, F4], ids=str)
@few(40)
def test_weights_filtered_for_gpus_are_transforms_of_groups(
    filtering: Any, outputs: int, inputs: int, then: LanesLast | None
) -> None:
    array, packing = weight(outputs, inputs, 3, 3), Transformed(filtering, then)
    check(array, packing.apply(array), gpu_layout(packing, array.shape))


def test_a_large_weight_is_made_on_several_threads() -> None:
    array = weight(512, 300)
    packing = Panels(0, (512, 300), (1, 0), 1, 300, 512, 1, runs(512, 6))
    check(array, packing.apply(array), cpu_layout(packing, array.shape))


def test_without_the_plug_in_layouts_are_made_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_api, "_library", lambda: None)
    array = weight(20, 12, 3, 3)
    packing = filtered(SMALL_TILES, 20, 12, 6)
    check(array, packing.apply(array), cpu_layout(packing, array.shape))
