"""Products and convolutions with tiles in shared memory: forced on software devices, which run barriers too."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.cuda.codegen import captured_sources
from heterocc.compiler.lower.cuda.lowering import cuda_target
from heterocc.compiler.lower.gpu.contraction.product_axes import Product, product_of
from heterocc.compiler.lower.gpu.contraction.tiled import TILES, GroupTile, choose_group_tile, schedule_tiled
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.vulkan import lowering
from heterocc.runtime.native.opencl_api import opencl_devices
from heterocc.runtime.native.vulkan_api import vulkan_devices
from tests.compiler.lower import opencl_run, vulkan_run
from tests.compiler.lower.gpu_run import Graph, Runner, conv_of, node

RNG = np.random.default_rng(11)
conv = partial(conv_of, RNG)


def missing(devices: Callable[[], object]) -> str | None:
    try:
        devices()
    except HeteroccError as error:
        return error.message
    return None


def api(module: Runner, devices: Callable[[], object], name: str, *others: pytest.MarkDecorator) -> object:
    reason = missing(devices)
    marks = [
        *others,
        pytest.mark.skipif(reason is not None, reason=f"no {name} device: {reason}"),
        pytest.mark.xdist_group(name),
    ]
    return pytest.param(module, id=name, marks=marks)


OPENCL = api(opencl_run.RUNNER, opencl_devices, "opencl")
each_api = pytest.mark.parametrize("api", [api(vulkan_run.RUNNER, vulkan_devices, "vulkan"), OPENCL])
one_api = pytest.mark.parametrize("api", [api(vulkan_run.RUNNER, vulkan_devices, "vulkan", pytest.mark.slow), OPENCL])
"""For what is decided before the API matters: the other API is slow."""


def hardware(device: TargetDevice) -> TargetDevice:
    """The device as one that is no CPU."""
    return dataclasses.replace(device, software=False, unit="discrete")


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


GRAPHS = {
    "padded": conv((1, 32, 28, 28), (64, 32, 5, 5), "Relu", pads=[2, 2, 2, 2]),
    "strided-dilated-odd": conv((2, 19, 17, 23), (37, 19, 5, 3), strides=[2, 1], dilations=[1, 2], pads=[2, 0, 1, 3]),
    "grouped": conv((1, 64, 14, 14), (64, 16, 1, 1), "Sigmoid", group=4),
    "prime": conv((1, 33, 13, 13), (67, 33, 1, 1), "Tanh"),
    "product": Graph({"a": normal(100, 40), "b": normal(40, 24)}, [node("MatMul", "a", "b")]),
    "attention": Graph({"q": normal(2, 3, 50, 32), "k": normal(2, 3, 32, 70)}, [node("MatMul", "q", "k")]),
    "transposed": Graph(
        {"a": normal(40, 50)},
        [node("Gemm", "a", "w", "b", transA=1, transB=1, alpha=0.5)],
        {"w": normal(30, 40), "b": normal(30)},
    ),
}


def rules(dumps: Iterable[tuple[str, str]]) -> int:
    """Kernels of shared tiles."""
    return dict(dumps)["scheduled.py"].count('"heterocc.rule": "shared tile"')


@one_api
@pytest.mark.parametrize("name", GRAPHS)
def test_shared_tiles_match_onnx_runtime(api: Runner, name: str, tmp_path: Path) -> None:
    lowered = api.check(GRAPHS[name], tmp_path, device=hardware(api.first_device()))
    assert rules(lowered.dumps) == 1
    assert not rules(api.check(GRAPHS[name], tmp_path).dumps), "a CPU that plays the device has no use for them"


@each_api
def test_small_groups_get_small_tiles(api: Runner, tmp_path: Path) -> None:
    device = hardware(api.first_device())
    small = dataclasses.replace(device, target={**device.target, "max_num_threads": 64})
    assert rules(api.check(GRAPHS["padded"], tmp_path, device=small).dumps) == 1
    smaller = dataclasses.replace(device, target={**device.target, "max_num_threads": 32})
    assert rules(api.check(GRAPHS["padded"], tmp_path, device=smaller).dumps) == 0


@pytest.mark.skipif(missing(vulkan_devices) is not None, reason="no Vulkan device")
def test_groups_beyond_the_last_store_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lowering, "GRID", 4)
    graph = conv((1, 33, 37, 16), (67, 33, 1, 1), "Tanh")
    lowered = vulkan_run.check(graph, tmp_path, device=hardware(vulkan_run.first_device()))
    assert rules(lowered.dumps) == 1


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_the_items_of_a_group_share_the_loads_evenly(tile: GroupTile) -> None:
    assert tile.terms * tile.rows % tile.items == 0
    assert tile.terms * tile.columns % tile.items == 0


def test_tiles_leave_the_gpu_enough_groups_and_keep_to_its_limits() -> None:
    def best(rows: int, columns: int, limits: Limits) -> GroupTile | None:
        return choose_group_tile(sized(rows, columns), limits)

    roomy = Limits(1024, False, frozenset(["float32"]), shared=49152)
    assert best(4096, 4096, roomy) == TILES[0]
    assert best(49, 512, roomy) == TILES[-1]
    assert best(4096, 4096, dataclasses.replace(roomy, group=64)) == GroupTile(32, 32, 16, 4, 4)
    assert best(4096, 4096, dataclasses.replace(roomy, shared=4224)) == GroupTile(32, 32, 16, 4, 4)
    assert best(4096, 4096, dataclasses.replace(roomy, shared=4223)) == GroupTile(16, 16, 16, 2, 2)
    assert best(4096, 4096, dataclasses.replace(roomy, shared=1024)) is None


def matmul(rows: int, terms: int, columns: int, dtype: str = "float32") -> tirx.PrimFunc:
    left, right = te.placeholder((rows, terms), dtype, "a"), te.placeholder((terms, columns), dtype, "b")
    k = te.reduce_axis((0, terms), "k")
    out = te.compute((rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], k))
    return te.create_prim_func([left, right, out])


def sized(rows: int, columns: int) -> Product:
    """A product of 64 terms."""
    found = product_of(matmul(rows, 64, columns))
    assert found is not None
    return found


def words_of_a_bank(index: str, element: int) -> int:
    """The largest number of words of one bank that the first 32 threads use, for an index of an array in shared memory.

    `element` is the size of an element in bytes. Threads that use the same word do not wait for each other.
    """
    words = {eval(index.replace("((int)threadIdx.x)", str(thread))) * element // 4 for thread in range(32)}
    return max(Counter(word % 32 for word in words).values())


def test_terms_a_power_of_two_apart_would_be_in_one_bank() -> None:
    index = "(((int)threadIdx.x) & 15) * {} + (((int)threadIdx.x) >> 4)"
    assert [words_of_a_bank(index.format(pitch), 4) for pitch in (128, 129, 130)] == [16, 2, 1]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_no_two_threads_of_a_warp_wait_for_one_bank_of_shared_memory(tile: GroupTile, dtype: str) -> None:
    limits = Limits(1024, False, frozenset([dtype]), shared=49152, choose=lambda name, options: tile)
    packed = schedule_tiled(matmul(1024, 512, 1024, dtype), limits)
    assert packed is not None
    target = TargetDevice("CUDA", "cuda", target={"kind": "cuda", "arch": "sm_90"}, present=False)
    with captured_sources() as sources:
        tvm.compile(tvm.IRModule({"kernel": packed.function.with_attr("global_symbol", "kernel")}), cuda_target(target))
    found = re.findall(r"\b(?:left|right)_ptr\[(.*?)\](?= = |;)", sources[0])
    element = np.dtype(dtype).itemsize
    assert len(found) > 4
    assert max(words_of_a_bank(index.replace("term", "3"), element) for index in found) == 1


def test_maxima_and_products_of_integers_are_no_matrix_products() -> None:
    left, right = te.placeholder((32, 64), "int32", "a"), te.placeholder((64, 32), "int32", "b")
    k = te.reduce_axis((0, 64), "k")
    out = te.compute((32, 32), lambda i, j: te.sum(left[i, k] * right[k, j], k))
    assert product_of(te.create_prim_func([left, right, out])) is None
    x = te.placeholder((32, 64), "float32", "x")
    assert product_of(te.create_prim_func([x, te.compute((32,), lambda i: te.max(x[i, k], k))])) is None
