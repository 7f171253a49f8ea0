"""Tiles of contractions on GPUs: sizes for any extent, padded weights, and accesses beyond the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import s_tir, te, tirx

from heterocc.compiler.lower.gpu.contraction.contraction import schedule_contraction
from heterocc.compiler.lower.gpu.contraction.padding import padded
from heterocc.compiler.lower.gpu.contraction.tile import Tile, choose_tile
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import LanesLast
from heterocc.compiler.lower.gpu.schedule import schedule_kernels
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.compiler.lower.vulkan.target import vulkan_target
from tests.compiler.lower.gpu_run import Graph, imported, node, whole
from tests.compiler.lower.vulkan_run import ROOMY

FLOATS = frozenset(["float32"])
GPU = Limits(256, False, FLOATS)
SOFTWARE = Limits(256, False, FLOATS, tile=(16, 256))
PROCESSOR = Limits(256, True, FLOATS)


@pytest.mark.parametrize("limits", [GPU, SOFTWARE, PROCESSOR], ids=["GPU", "software", "processor"])
@pytest.mark.parametrize("extent", [13, 37, 111, 169])
def test_extents_without_divisors_get_large_tiles_too(limits: Limits, extent: int) -> None:
    tile = choose_tile(extent, 67, 1, limits, pads_lanes=True)
    assert tile.rows >= 4
    assert tile.lanes >= 4


def test_lanes_that_cannot_be_padded_divide_their_axis() -> None:
    assert choose_tile(56, 66, 1, GPU, pads_lanes=False).lanes == 2
    assert choose_tile(56, 67, 1, GPU, pads_lanes=False).lanes == 1


def test_tiles_keep_to_the_limits_of_the_device() -> None:
    for rows, lanes in [(1, 1), (7, 512), (3136, 64), (169, 1000)]:
        tile = choose_tile(rows, lanes, 1, GPU, pads_lanes=True)
        assert max(tile.rows, tile.lanes) <= 4
        assert tile.rows * tile.lanes <= 16
    assert choose_tile(3136, 64, 1, GPU, pads_lanes=True) == Tile(4, 4)


def test_the_last_group_of_lanes_is_filled_up_with_zeros() -> None:
    weight = np.arange(1, 31, dtype=np.float32).reshape(5, 3, 2)
    packed = LanesLast(0, 4).apply(weight)
    assert packed.shape == (2, 3, 2, 4)
    assert np.array_equal(packed[0], np.moveaxis(weight[:4], 0, -1))
    assert np.array_equal(packed[1, ..., 0], weight[4])
    assert not packed[1, ..., 1:].any()


def reversed_sum() -> object:
    """y[i] = sum over k of x[9 - i] * k."""
    x = te.placeholder((10,), "float32", "x")
    k = te.reduce_axis((0, 3), "k")
    y = te.compute((10,), lambda i: te.sum(x[9 - i] * k.astype("float32"), axis=k), "y")
    return te.create_prim_func([x, te.compute((10,), lambda i: y[i] + 1.0, "z")])


def test_an_axis_that_is_read_backwards_is_not_made_longer() -> None:
    schedule = s_tir.Schedule(reversed_sum())
    with pytest.raises(s_tir.ScheduleError, match="before the start"):
        padded(schedule.mod["main"], schedule.get(schedule.get_sblock("y")), {0: 12}, {})


def test_a_longer_axis_reads_its_last_element_again() -> None:
    n, m, k = (tirx.IntImm("int64", v) for v in (13, 19, 5))
    x, w = te.placeholder((n, k), "float32", "x"), te.placeholder((k, m), "float32", "w")
    r = te.reduce_axis((0, k), "k")
    y = te.compute((n, m), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "y")
    packed = schedule_contraction(te.create_prim_func([x, w, y]), GPU, {1})
    assert packed is not None
    assert packed.layouts == ((1, LanesLast(1, 4)),)
    assert "T.int64(12)" in str(packed.function)


@pytest.mark.parametrize("after", [("Relu",), ()], ids=["activation", "none"])
def test_convolutions_of_single_pixels_see_one_axis_of_them(after: tuple[str, ...], tmp_path: Path) -> None:
    nodes = [node("Conv", "x", "w", outputs=["y"]), *(node(op_type, "y") for op_type in after)]
    graph = Graph({"x": np.ones((1, 8, 13, 11), np.float32)}, nodes, {"w": np.ones((16, 8, 1, 1), np.float32)})
    target = vulkan_target(ROOMY)
    module = schedule_kernels(kernel_module(whole(imported(graph, tmp_path), ROOMY), target), target, SOFTWARE)
    text = str(module.mod)
    assert "T.min(v1, T.int64(142))" in text
    assert "x[T.int64(0), v2, T.int64(0), T.min(v1, T.int64(142))]" in text  # by pixel: no division for each load
