"""Values that a device with precision=f16 stores as float16, and sums, which stay in float32."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from onnx import helper
from tvm import s_tir, tirx

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.cuda.lowering import CudaLowering
from heterocc.compiler.lower.pipeline import KernelModule, kernel_module
from heterocc.compiler.lower.vulkan.lowering import VulkanLowering, kernels_of
from heterocc.compiler.lower.vulkan.target import limits_of, vulkan_target
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.lower.cuda_sample import HOPPER, needs_compiler
from tests.compiler.lower.gpu_run import Graph, Node, imported, node, whole
from tests.compiler.lower.vulkan_run import ROOMY, assert_valid, first_device, run

REASON = vulkan_unavailable_reason()
HALF = {"precision": "f16"}
DEVICE = dataclasses.replace(ROOMY, properties=HALF)
RNG = np.random.default_rng(0)


def floats(*shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    return (RNG.uniform(-1, 1, shape) * scale).astype(np.float32)


def lowered(graph: Graph, folder: Path, device: TargetDevice = DEVICE, trial: bool = False) -> KernelModule:
    job = dataclasses.replace(whole(imported(graph, folder), device), trial=trial)
    return kernel_module(job, vulkan_target(device))


def signatures(module: KernelModule) -> dict[str, tuple[str, ...]]:
    """Dtypes of every kernel's tensors in order, by the type of the last node that it computes."""
    functions = {g.name_hint: f for g, f in module.mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    found = {}
    for kernel in module.kernels:
        if kernel.symbol in functions:
            types = (p.ty.dtype for p in functions[kernel.symbol].params)
            found[kernel.nodes[-1].rpartition("_")[0]] = tuple(str(getattr(t, "dtype", t)) for t in types)
    return found


def around(*middle: Node, **constants: np.ndarray) -> Graph:
    """x[1,8,6,6] through a 1×1 convolution, the nodes (from `a` to `b`), and a product with a matrix.

    No kernel fuses over either, so the nodes' inputs and outputs are in memory.
    """
    first = node("Conv", "x", "first", outputs=["a"])
    given = {"first": floats(8, 8, 1, 1), "last": floats(6, 5, scale=0.5), **constants}
    return Graph({"x": floats(1, 8, 6, 6)}, [first, *middle, node("MatMul", "b", "last")], given)


def one(op_type: str, *inputs: str, **attributes: Any) -> Node:
    return node(op_type, "a", *inputs, outputs=["b"], **attributes)


SUMS = {
    "Conv": (one("Conv", "w", pads=[1, 1, 1, 1]), {"w": floats(8, 8, 3, 3, scale=0.2)}),
    "Conv by depth": (one("Conv", "w", pads=[1, 1, 1, 1], group=8), {"w": floats(8, 1, 3, 3)}),
    "ConvTranspose": (one("ConvTranspose", "w", pads=[1, 1, 1, 1]), {"w": floats(8, 8, 3, 3, scale=0.2)}),
    "MatMul": (one("MatMul", "w"), {"w": floats(6, 6)}),
    "AveragePool": (one("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), {}),
    "MaxPool": (one("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), {}),
    "ReduceMean": (one("ReduceMean", axes=[2]), {}),
    "Softmax": (one("Softmax", axis=1), {}),
    "LayerNormalization": (one("LayerNormalization", "s", "t", axis=-1), {"s": floats(6), "t": floats(6)}),
    "InstanceNormalization": (one("InstanceNormalization", "s", "t"), {"s": floats(8), "t": floats(8)}),
    "Transpose": (one("Transpose", perm=[0, 2, 1, 3]), {}),
    "Gelu by Erf": (one("Erf"), {}),
}


@pytest.mark.vulkan
@pytest.mark.skipif(REASON is not None, reason=f"no Vulkan device: {REASON}")
@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (n % 2)) for n, c in enumerate(SUMS)])
def test_operators_between_halves_are_right_valid_and_add_up_in_float32(case: str, tmp_path: Path) -> None:
    middle, constants = SUMS[case]
    graph = around(middle, **constants)
    device = dataclasses.replace(first_device(), properties=HALF)
    model = imported(graph, tmp_path)
    job = whole(model, device)
    partition = VulkanLowering().lower(job)
    assert {p.dtype.name for p in partition.params} == {"float16"}
    assert_float32_sums(kernel_module(job, vulkan_target(device)))
    (got,), (want,) = run(model, partition, graph.inputs), graph.reference()
    assert got.dtype == want.dtype
    # Six roundings of 2^-11 at most, and sums of at most 72 terms between them.
    assert np.abs(got - want).max() <= 6 * 2**-11 * 4 * np.abs(want).max()
    assert np.abs(got - want).max() > 0
    assert_valid(kernels_of(job, vulkan_target(device), limits_of(device)))


def assert_float32_sums(module: KernelModule) -> None:
    """Every sum of every kernel is in a float32 buffer; a maximum is the same in float16."""
    sums: list[str] = []

    def visit(block: Any) -> None:
        if block.init is not None and not isinstance(block.body.value, tirx.Max):
            dtype = block.writes[0].source.dtype
            sums.append(str(getattr(dtype, "dtype", dtype)))

    for _, function in module.mod.functions_items():
        if isinstance(function, tirx.PrimFunc):
            tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, visit)], order="post")
    assert len(sums) >= 2 and set(sums) == {"float32"}


def test_borders_stay_float32_and_what_lies_between_kernels_is_half(tmp_path: Path) -> None:
    module = lowered(around(one("Conv", "w"), w=floats(8, 8, 1, 1)), tmp_path)
    assert signatures(module)["MatMul"] == ("float16", "float16", "float32")
    first, second = (k.symbol for k in module.kernels[:2])
    types = {
        g.name_hint: [str(getattr(p.ty.dtype, "dtype", p.ty.dtype)) for p in f.params]
        for g, f in module.mod.functions_items()
        if isinstance(f, tirx.PrimFunc)
    }
    # The two convolutions are one kernel in float32; here they differ by what they read.
    assert types[first] == ["float32", "float16", "float16"]
    assert types[second] == ["float16", "float16", "float16"]


def test_a_trial_stores_its_borders_as_inside_a_partition(tmp_path: Path) -> None:
    graph = Graph({"x": floats(4, 6)}, [node("MatMul", "x", "w")], {"w": floats(6, 5)})
    assert signatures(lowered(graph, tmp_path, trial=True))["MatMul"] == ("float16",) * 3
    assert signatures(lowered(graph, tmp_path))["MatMul"] == ("float32", "float16", "float32")


def test_padding_inside_a_kernel_is_half(tmp_path: Path) -> None:
    module = lowered(around(one("Conv", "w", pads=[1, 1, 1, 1]), w=floats(8, 8, 3, 3)), tmp_path)
    function = module.mod[module.kernels[1].symbol]
    buffers: list[Any] = []
    tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, lambda n: buffers.extend(n.alloc_buffers))], order="post")
    found = {b.name: str(getattr(b.dtype, "dtype", b.dtype)) for b in buffers}
    assert found == {"pad_temp": "float16"} | {n: "float32" for n in found if n != "pad_temp"} and len(found) > 1


KEPT = {
    # In one kernel with the convolution, whose operands decide; ArgMax has a separate kernel.
    "Floor": ((one("Floor"),), ("Floor", ("float32", "float32", "float16"))),
    "ArgMax": (
        (node("ArgMax", "a", outputs=["i"], axis=1), node("Cast", "i", outputs=["b"], to=1)),
        ("Conv", ("float32", "float16", "float32")),
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_decides_reads_float32(case: str, tmp_path: Path) -> None:
    nodes, (kernel, dtypes) = KEPT[case]
    assert signatures(lowered(around(*nodes), tmp_path))[kernel] == dtypes


def test_scales_of_integers_keep_all_their_bits(tmp_path: Path) -> None:
    given = {"q": RNG.integers(-9, 9, (4, 64)).astype(np.int8)}
    constants = {"s": floats(64) ** 2, "z": np.zeros(64, np.int8), "w": floats(64, 8)}
    nodes = [node("DequantizeLinear", "q", "s", "z", outputs=["x"], axis=1), node("MatMul", "x", "w")]
    arrays = lowered(Graph(given, nodes, constants), tmp_path).arrays.values()
    assert {a.shape: a.dtype.name for a in arrays if a.dtype.kind == "f"} == {(1, 64): "float32", (64, 8): "float16"}


def test_what_may_leave_the_range_of_half_is_written_as_float32(tmp_path: Path) -> None:
    plain = signatures(lowered(around(one("Sigmoid")), tmp_path))
    assert plain["Sigmoid"][-1] == "float16" and plain["MatMul"][0] == "float16"
    large = signatures(lowered(around(one("Exp")), tmp_path))
    assert large["Exp"][-1] == "float32" and large["MatMul"][0] == "float32"


def test_a_weight_that_half_cannot_hold_and_what_is_computed_with_it_stay_float32(tmp_path: Path) -> None:
    module = lowered(around(one("Mul", "w"), w=np.full((8, 1, 1), 1e5, np.float32)), tmp_path)
    assert sorted(a.dtype.name for a in module.arrays.values()) == ["float16", "float16", "float32"]
    assert signatures(module)["MatMul"] == ("float32", "float16", "float32")


def test_a_mask_with_the_lowest_number_stays_finite(tmp_path: Path) -> None:
    low = np.array(-3.4e38, np.float32)
    nodes = (node("Greater", "x", "zero", outputs=["m"]), one_where(), node("Softmax", "b2", outputs=["b"], axis=-1))
    module = lowered(around(*nodes, zero=np.array(0, np.float32), low=low), tmp_path)
    assert signatures(module)["Softmax"][0] == "float32"


def one_where() -> Node:
    return helper.make_node("Where", ["m", "a", "low"], ["b2"])


def test_a_kernel_that_hands_out_pointers_keeps_its_types(tmp_path: Path) -> None:
    indices = np.array([[[[1, 0, 2, 3, 4, 5]]]], np.int64).repeat(8, 1)
    module = lowered(around(one("ScatterElements", "i", "u", axis=3), i=indices, u=floats(1, 8, 1, 6)), tmp_path)
    found = signatures(module)
    assert found["ScatterElements"] == ("float32", "int64", "float32", "float32")


def test_kernels_of_several_outputs_and_plain_copies_are_half(tmp_path: Path) -> None:
    two = node("Split", "a", "sizes", outputs=["b", "c"], axis=1)
    graph = around(two, node("Relu", "c"), sizes=np.array([3, 5], np.int64))
    device = dataclasses.replace(first_device(), properties=HALF) if REASON is None else DEVICE
    assert signatures(lowered(graph, tmp_path, device))["Split"] == ("float16",) * 3
    copy = Graph({"x": floats(4, 6)}, [node("Identity", "x")])
    module = lowered(copy, tmp_path, trial=True)
    assert [str(p.ty.dtype.dtype) for p in module.mod["main"].params] == ["float16"]


def test_a_kernel_that_tvm_gives_ready_stays_as_it_is(tmp_path: Path) -> None:
    indices = np.array([[0, 1], [0, 5]], np.int64)
    graph = around(one("ScatterND", "i", "u"), i=indices, u=floats(2, 6, 6))
    single = lowered(graph, tmp_path, ROOMY)
    half = lowered(graph, tmp_path)
    kernel = next(k.symbol for k in half.kernels if k.nodes[-1].startswith("ScatterND"))
    assert tvm_ffi.structural_equal(half.mod[kernel], single.mod[kernel])


@needs_compiler
def test_cuda_compiles_kernels_on_halves(tmp_path: Path) -> None:
    device = dataclasses.replace(HOPPER, properties=HALF)
    middle, constants = SUMS["Conv"]
    partition = CudaLowering().lower(whole(imported(around(middle, **constants), tmp_path), device))
    assert {p.dtype.name for p in partition.params} == {"float16"}
    (source,) = (text for name, text in partition.dumps if name.endswith(".cu"))
    assert "half* __restrict__" in source


def test_a_device_without_half_precision_refuses_the_node(tmp_path: Path) -> None:
    device = dataclasses.replace(DEVICE, dtypes=DEVICE.dtypes - {"float16"})
    model = imported(around(one("Sigmoid")), tmp_path)
    answer = VulkanLowering().trial(model, model.graph.nodes[0].name, device)
    assert answer is not None and "does not support float16" in answer


def test_jobs_are_not_trials_by_default(tmp_path: Path) -> None:
    model = imported(around(one("Sigmoid")), tmp_path)
    assert not PartitionJob("p0", model, DEVICE, (), (), ()).trial
