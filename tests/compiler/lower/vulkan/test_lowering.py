"""Lowering for Vulkan: results on the device against ONNX Runtime, and refusals by a device's limits."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.vulkan.lowering import VulkanLowering
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.lower.gpu_run import Graph, conv_of, imported, node, whole
from tests.compiler.lower.vulkan_run import ROOMY, check, first_device, lower, run

REASON = vulkan_unavailable_reason()
on_device = pytest.mark.skipif(REASON is not None, reason=f"no Vulkan device: {REASON}")
pytestmark = pytest.mark.vulkan

RNG = np.random.default_rng(7)
conv = partial(conv_of, RNG)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def limited(**target: int | bool) -> TargetDevice:
    return dataclasses.replace(ROOMY, target={**ROOMY.target, **target})


@on_device
def test_float16_and_float64_match_onnx_runtime(tmp_path: Path) -> None:
    half = Graph(
        {"x": normal(3, 16).astype("float16")},
        [node("MatMul", "x", "w"), node("Softmax", "x"), node("Add", "x", "x"), node("Cast", "x", to=1)],
        {"w": (normal(16, 8) / 4).astype("float16")},
    )
    check(half, tmp_path, tolerance=2e-3)
    wide = normal(3, 16).astype("float64")
    check(Graph({"x": wide}, [node("Add", "x", "x"), node("Sqrt", "a")], {"a": np.abs(wide)}), tmp_path)


@on_device
def test_more_work_groups_than_an_axis_takes_are_folded(tmp_path: Path) -> None:
    count = 256 * 65537  # a prime number of groups: no even split
    x = np.arange(count, dtype=np.float32)
    model, lowered = lower(Graph({"x": x}, [node("Neg", "x")]), tmp_path)
    np.testing.assert_array_equal(run(model, lowered, {"x": x})[0], -x)


@on_device
def test_the_parts_of_a_lowered_partition_are_named_and_dumped(tmp_path: Path) -> None:
    model, lowered = lower(conv((1, 4, 8, 8), (32, 4, 3, 3), "Relu"), tmp_path)
    assert {n for kernel in lowered.kernels for n in kernel.nodes} == {n.name for n in model.graph.nodes}
    dumps = dict(lowered.dumps)
    text = next(text for name, text in dumps.items() if name.endswith(".spvasm"))
    assert "OpEntryPoint" in text
    assert set(lowered.requires) <= {"nan32"}


@on_device
def test_a_partition_says_what_it_needs_of_a_device(tmp_path: Path) -> None:
    graph = Graph({"x": normal(4).astype("float16"), "i": RNG.integers(0, 9, 4)}, [node("Exp", "x"), node("Neg", "i")])
    device = limited(supports_nan16=False, supports_nan64=False)
    lowered = VulkanLowering().lower(whole(imported(graph, tmp_path), device))
    assert lowered.requires == ("int64", "nan32", "storage16")  # exp of float16 is computed in float32


@pytest.mark.parametrize(
    ("graph", "device", "reason"),
    [
        (Graph({"x": normal(4).astype("float64")}, [node("Exp", "x")]), ROOMY, "float64"),
        (
            Graph({f"x{i}": normal(4) for i in range(6)}, [node("Concat", *(f"x{i}" for i in range(6)), axis=0)]),
            limited(max_per_stage_descriptor_storage_buffer=4),
            "7 buffers, but the device allows only 4",
        ),
        (
            Graph({"x": normal(1024, 33)}, [node("Neg", "x")]),
            limited(max_storage_buffer_range=1 << 16),
            "buffer of 135168 bytes, but the device allows only 65536",
        ),
        (Graph({"x": normal(4) > 0}, [node("Not", "x")]), limited(supports_8bit_buffer=False), "8-bit elements"),
        (Graph({"x": RNG.integers(0, 9, 5)}, [node("Neg", "x")]), limited(supports_int64=False), "64-bit integers"),
    ],
    ids=["function", "buffers", "range", "bool", "int64"],
)
def test_what_a_device_cannot_take_is_refused_with_the_reason(
    graph: Graph, device: TargetDevice, reason: str, tmp_path: Path
) -> None:
    model = imported(graph, tmp_path)
    answer = VulkanLowering().trial(model, model.graph.nodes[0].name, device)
    assert answer is not None
    assert reason in answer


def test_sums_that_a_software_driver_would_leave_early_are_refused_there_alone(tmp_path: Path) -> None:
    a, b = normal(2, 70_000), normal(70_000, 33)
    model = imported(Graph({"a": a, "b": b}, [node("MatMul", "a", "b")]), tmp_path)
    name = model.graph.nodes[0].name
    refused = VulkanLowering().trial(model, name, dataclasses.replace(ROOMY, software=True))
    assert refused is not None
    assert "silently stops after 65535" in refused
    assert VulkanLowering().trial(model, name, ROOMY) is None


def test_a_dtype_that_the_device_lacks_is_refused_and_names_the_node(tmp_path: Path) -> None:
    model = imported(Graph({"x": normal(4).astype("float16")}, [node("Exp", "x")]), tmp_path)
    device = dataclasses.replace(ROOMY, dtypes=frozenset(["float32"]))
    with pytest.raises(LoweringError, match="the device does not support float16") as caught:
        VulkanLowering().lower(whole(model, device))
    assert model.graph.nodes[0].name in (caught.value.where or "")


@on_device
def test_kernels_are_not_fused_if_fused_ones_have_too_many_buffers(tmp_path: Path) -> None:
    names = [f"x{i}" for i in range(6)]
    nodes = [node("Add", "x0", "x1", outputs=["s1"])]
    nodes += [node("Add", f"s{i - 1}", f"x{i}", outputs=[f"s{i}"]) for i in range(2, 6)]
    graph = Graph({n: normal(4, 4) for n in names}, nodes)
    narrow = limited(max_per_stage_descriptor_storage_buffer=3)
    model, lowered = lower(graph, tmp_path, narrow)
    assert len(lowered.kernels) == 5
    assert np.allclose(run(model, lowered, graph.inputs)[0], graph.reference()[0])
    assert len(lower(graph, tmp_path)[1].kernels) == 1
    assert first_device().backend == "vulkan"
