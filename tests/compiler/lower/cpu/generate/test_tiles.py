"""Tiles, packed weights, and which kernels are generated at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from tvm import tirx

from heterocc.compiler.lower.cpu.generate import cores
from heterocc.compiler.lower.cpu.generate.isa import Isa, isa_of
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.tiles import (
    choose_tile,
    most_rows,
    pick_tile,
    runs,
)
from heterocc.compiler.lower.cpu.sizes import Dim
from tests.compiler.lower.cpu.generate.generated import ARM, AVX2, AVX512, Generated, target_of

node = helper.make_node


@given(st.integers(1, 500), st.integers(1, 40))
def test_runs_cover_everything_once_in_tiles_of_nearly_one_size(total: int, most: int) -> None:
    found = runs(total, most)
    places = [run.start + n * run.size + i for run in found for n in range(run.count) for i in range(run.size)]
    assert places == list(range(total))
    assert len(found) <= 2 and max(r.size for r in found) <= most
    assert max(r.size for r in found) - min(r.size for r in found) <= 1
    assert [r.first for r in found] == [0, found[0].count][: len(found)]


@pytest.mark.parametrize(("rows", "usual"), [(24, 12), (48, 12), (300, 12), (48, 1)])
def test_tiles_of_any_number_of_vectors_are_narrow(rows: int, usual: int) -> None:
    """What whole tiles leave is computed vector by vector, at less speed."""
    assert pick_tile(rows, Dim(usual, tirx.Var("n", "int64")), Isa(cores.AVX512, 16, 32))[1] == 2


@pytest.mark.parametrize("rows", [16, 48, 64, 128, 256])
def test_tiles_of_any_number_of_vectors_of_few_sums_are_the_fastest(rows: int) -> None:
    """AVX2 has registers for six rows at most; five rows save hardly any code and are slower."""
    assert pick_tile(rows, Dim(12, tirx.Var("n", "int64")), Isa(cores.AVX2, 8, 16)) == (6, 2)


@given(
    st.integers(1, 600),
    st.integers(1, 80),
    st.sampled_from([Isa(cores.AVX512, 16, 32), Isa(cores.AVX2, 8, 16), Isa(cores.NEON, 4, 32)]),
)
def test_a_tile_fits_the_registers_and_the_stack(rows: int, vectors: int, isa: Isa) -> None:
    tall, wide = choose_tile(rows, vectors, isa)
    assert tall <= rows and wide <= vectors
    assert tall * wide + wide + 1 <= isa.registers
    assert tall * isa.lanes * 4 < 1024


@pytest.mark.parametrize(
    ("target", "isa"),
    [
        (target_of(AVX512), Isa(cores.AVX512, 16, 32, "pairs", masks=True, halves=True)),
        (target_of(AVX2), Isa(cores.AVX2, 8, 16, "pairs", halves=True)),
        (target_of("x86-64"), Isa(cores.SSE, 4, 16)),
        (ARM, Isa(cores.NEON, 4, 32, halves=True)),
    ],
)
def test_the_instruction_set_is_read_off_the_target(target: object, isa: Isa) -> None:
    assert isa_of(target) == isa


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 70), st.sampled_from([1, 4, 8]), st.integers(1, 5))
def test_panels_hold_each_tile_in_the_order_it_is_read(
    outer: int, terms: int, places: int, lanes: int, most: int
) -> None:
    array = np.arange(outer * terms * places, dtype=np.float32).reshape(outer, places, terms) + 1
    tiles = runs(-(-places // lanes), most)
    panels = Panels(0, array.shape, (0, 2, 1), outer, terms, places, lanes, tiles)
    packed = panels.apply(array)
    assert packed.shape == (panels.size,)
    last = max(places - lanes, 0)
    place = 0
    for block in range(outer):
        for run in tiles:
            for tile in range(run.count):
                first = run.start + tile * run.size
                for term in range(terms):
                    for vector in range(run.size):
                        start = min((first + vector) * lanes, last)
                        row = array[block, start : start + lanes, term]
                        right = np.pad(row, (0, lanes - len(row)))
                        np.testing.assert_array_equal(packed[place : place + lanes], right)
                        place += lanes
    assert place == panels.size


@pytest.mark.parametrize(
    ("nodes", "inputs"),
    [
        ([node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2])], {"x": np.ones((1, 2, 6, 6))}),
        ([node("IsNaN", ["x"], ["y"])], {"x": np.ones((5, 5), np.float32)}),
    ],
    ids=["pooling of float64", "booleans"],
)
def test_kernels_of_other_kinds_are_left_to_the_schedule(nodes: list[object], inputs: dict[str, np.ndarray]) -> None:
    assert Generated(nodes, inputs, {}, target_of(AVX2)).done is None  # type: ignore[arg-type]


def test_narrow_maps_of_enough_channels_have_vectors_along_these() -> None:
    for channels, lanes in ((32, 16), (30, 16), (2, 1)):
        weights = {"w": np.ones((channels, 16, 3, 3), np.float32)}
        nodes = [node("Conv", ["x", "w"], ["y"], pads=[1] * 4)]
        kernel = Generated(nodes, {"x": np.ones((1, 16, 7, 7), np.float32)}, weights, target_of(AVX512))
        assert kernel.done is not None
        (packing,) = kernel.done[1]
        assert isinstance(packing, Panels) and packing.lanes == lanes


@pytest.mark.parametrize(("pitch", "most"), [(4096, 8), (8192, 8), (12288, 8), (2048, 14), (3072, 14), (4160, 14)])
def test_rows_that_share_a_set_of_the_cache_are_few(pitch: int, most: int) -> None:
    assert most_rows(pitch, cores.AVX512) == most
