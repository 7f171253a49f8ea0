"""Every kernel that the Vulkan back end writes is valid SPIR-V: operators, dtypes, odd shapes, TIR statements."""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.script import tirx as T  # noqa: N812

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.vulkan import lowering
from heterocc.compiler.lower.vulkan.codegen import device_kernels
from heterocc.compiler.lower.vulkan.dtypes import UnsupportedError, parse
from heterocc.compiler.lower.vulkan.kernel import Feature, Kernel
from heterocc.compiler.lower.vulkan.lowering import disassemble
from heterocc.compiler.lower.vulkan.package import MAGIC, package
from heterocc.compiler.lower.vulkan.target import limits_of, vulkan_target
from tests.compiler.lower.gpu_run import Graph, Node, imported, node, whole
from tests.compiler.lower.vulkan_run import ROOMY, VALIDATOR, assert_valid, kernels_of

pytestmark = pytest.mark.skipif(VALIDATOR is None, reason="spirv-val (Debian: spirv-tools) is not installed")

RNG = np.random.default_rng(5)


def kernels(graph: Graph, folder: Path) -> list[Kernel]:
    """The kernels of a graph, without host code: this needs no plug-in."""
    job = whole(imported(graph, folder), ROOMY)
    return kernels_of_job(job)


def kernels_of_job(job: PartitionJob) -> list[Kernel]:
    return list(lowering.kernels_of(job, vulkan_target(job.device), limits_of(job.device)))


def numbers(dtype: str, *shape: int) -> np.ndarray:
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint")):
        return RNG.integers(1, 5, shape).astype(dtype)
    return RNG.uniform(0.1, 0.9, shape).astype(dtype)


def graph(dtype: str, nodes: list[Node]) -> Graph:
    """Nodes over x and y of odd shape, a row r, and a condition c."""
    inputs = {"x": numbers(dtype, 3, 5, 7), "y": numbers(dtype, 3, 5, 7), "c": numbers("bool", 3, 5, 7)}
    return Graph(inputs, nodes, {"r": numbers(dtype, 7)})


FUNCTIONS = (
    "Exp Log Sqrt Tanh Sigmoid Erf Sin Cos Tan Sinh Cosh Asinh Acos Asin Atan Atanh Floor Ceil Round Abs Neg Sign "
    "Reciprocal Softplus HardSwish Elu IsNaN IsInf"
).split()


@pytest.mark.parametrize(
    "dtype",
    "float32 float16 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split(),
)
def test_data_movement_is_valid_for_every_dtype(dtype: str, tmp_path: Path) -> None:
    moves = [
        node("Transpose", "x", perm=[2, 0, 1]),
        node("Concat", "x", "y", axis=1),
        node("Where", "c", "x", "y"),
        node("Reshape", "x", "shape"),
        node("Tile", "x", "repeats"),
        node("Slice", "x", "starts", "ends", "axes", "steps"),
        node("Gather", "x", "index"),
    ]
    made = graph(dtype, moves)
    made.constants = {
        **made.constants,
        "shape": np.array([7, 15]),
        "repeats": np.array([1, 2, 1]),
        "starts": np.array([4]),
        "ends": np.array([0]),
        "axes": np.array([1]),
        "steps": np.array([-2]),
        "index": np.array([2, 0]),
    }
    assert_valid(kernels(made, tmp_path))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_functions_are_valid(dtype: str, tmp_path: Path) -> None:
    nodes = [node(name, "x") for name in FUNCTIONS if dtype == "float32" or not name.startswith("Is")]
    assert_valid(kernels(graph(dtype, [*nodes, node("Pow", "x", "y"), node("PRelu", "x", "r")]), tmp_path))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_arithmetic_is_valid(dtype: str, tmp_path: Path) -> None:
    names = ["Add", "Sub", "Mul", "Greater", "Equal", "Less"]
    divided = [node("Div", "x", "r"), node("Mod", "x", "r")] if "int" in dtype else [node("Div", "x", "y")]
    nodes = [node(name, "x", "y") for name in names] + divided + [node("Cast", "x", to=t) for t in (1, 6, 7, 9)]
    assert_valid(kernels(graph(dtype, nodes), tmp_path))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("shape", "weight", "attributes"),
    [
        ((1, 3, 13, 11), (8, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
        ((2, 6, 9, 9), (6, 1, 3, 3), {"group": 6, "dilations": [2, 2]}),
        ((1, 8, 7, 7), (12, 4, 1, 1), {"group": 2}),
        ((1, 5, 17), (7, 5, 4), {"pads": [2, 1]}),
    ],
    ids=["strided", "depthwise", "grouped", "one-dimensional"],
)
def test_convolutions_are_valid(
    dtype: str, shape: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, object], tmp_path: Path
) -> None:
    made = Graph(
        {"x": numbers(dtype, *shape)},
        [node("Conv", "x", "w", "b", outputs=["c"], **attributes), node("Relu", "c")],
        {"w": numbers(dtype, *weight), "b": numbers(dtype, weight[0])},
    )
    assert_valid(kernels(made, tmp_path))


def test_reductions_products_and_norms_are_valid(tmp_path: Path) -> None:
    made = Graph(
        {"x": numbers("float32", 3, 6, 5), "m": numbers("float32", 5, 33), "n": numbers("float32", 33, 9)},
        [
            node("MatMul", "m", "n"),
            node("Gemm", "m", "m", transB=1),
            node("Softmax", "m"),
            node("ReduceMean", "x", axes=[1]),
            node("ArgMax", "m", axis=1),
            node("LayerNormalization", "m", "scale", "shift"),
            node("ReduceMax", "m"),
            node("ScatterND", "m", "rows", "planes"),
        ],
        {
            "scale": numbers("float32", 33),
            "shift": numbers("float32", 33),
            "rows": np.array([[1], [2]]),
            "planes": numbers("float32", 2, 33),
        },
    )
    assert_valid(kernels(made, tmp_path))


@T.prim_func(s_tir=True)
def shared_sums(a: T.Buffer((16, 64), "float32"), b: T.Buffer((16,), "float32")) -> None:
    for i in T.thread_binding(16, "blockIdx.x"):
        for j in T.thread_binding(64, "threadIdx.x"):
            with T.sblock("whole"):
                T.reads(a[i, j])
                T.writes(b[i])
                part = T.sblock_alloc_buffer((64,), "float32", scope="shared")
                part[j] = a[i, j]
                T.tvm_storage_sync("shared")
                if j == 0:
                    b[i] = 0.0
                    for k in range(64):
                        b[i] = b[i] + part[k]


@T.prim_func(s_tir=True)
def scaled(a: T.Buffer((100,), "float32"), n: T.int64, s: T.float32, k: T.int8, b: T.Buffer((100,), "float32")) -> None:
    for i in T.thread_binding(100, "threadIdx.x"):
        with T.sblock("whole"):
            T.reads(a[i])
            T.writes(b[i])
            b[i] = T.if_then_else(T.Cast("int64", i) < n, a[i] * s + T.Cast("float32", k), T.float32(0))


def test_shared_memory_and_barriers_are_valid() -> None:
    made = kernels_of(shared_sums)
    assert_valid(made)
    assert made[0].shared_bytes == 256
    assert made[0].local_size == (64, 1, 1)
    assert "OpControlBarrier" in disassemble(made[0].code)


def test_scalars_lie_in_push_constants_at_their_own_alignment() -> None:
    (kernel,) = kernels_of(scaled)
    assert_valid([kernel])
    scalars = [(a.dtype.name, a.place) for a in kernel.arguments if a.dtype is not None]
    assert {name for name, _ in scalars} == {"int64", "float32", "int8"}
    assert all(place % (8 if name == "int64" else 4) == 0 for name, place in scalars)
    assert len({place for _, place in scalars}) == 3
    assert kernel.push_bytes <= 24


def test_subgroup_reductions_are_valid_and_name_their_feature() -> None:
    @T.prim_func(s_tir=True)
    def summed(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")) -> None:
        for i in T.thread_binding(64, "threadIdx.x"):
            with T.sblock("whole"):
                T.reads(a[i])
                T.writes(b[i])
                b[i] = T.call_pure_extern("float32", "subgroup_add", a[i])

    made = kernels_of(summed)
    assert_valid(made)
    assert made[0].features == Feature.SUBGROUP_ARITHMETIC | Feature.NAN32


def test_bool_buffers_need_no_arithmetic_of_bytes(tmp_path: Path) -> None:
    made = kernels(graph("float32", [node("Greater", "x", "y", outputs=["g"]), node("Where", "g", "x", "y")]), tmp_path)
    stored = kernels(graph("float32", [node("Greater", "x", "y")]), tmp_path)
    assert all(Feature.INT8 not in k.features for k in [*made, *stored])
    assert Feature.STORAGE_8BIT in stored[0].features


def test_the_same_graph_gives_the_same_words(tmp_path: Path) -> None:
    def made() -> bytes:
        return package(kernels(graph("float32", [node("Softmax", "x"), node("Exp", "y")]), tmp_path))

    assert made() == made()


def test_equal_expressions_are_written_once() -> None:
    @T.prim_func(s_tir=True)
    def twice(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")) -> None:
        for i in T.thread_binding(64, "threadIdx.x"):
            with T.sblock("whole"):
                T.reads(a[i])
                T.writes(b[i])
                b[i] = T.exp(a[i] * a[i]) + T.exp(a[i] * a[i])

    text = disassemble(kernels_of(twice)[0].code)
    assert text.count("OpLoad") == 2  # the invocation's index, and a[i]


def test_a_package_holds_what_its_format_says(tmp_path: Path) -> None:
    made = kernels(graph("float32", [node("Add", "x", "y"), node("Exp", "x")]), tmp_path)
    data = package(list(reversed(made)))
    assert data == package(made)
    assert data[:4] == MAGIC
    version, count, length = struct.unpack_from("<3I", data, 4)
    first = min(made, key=lambda k: k.name)
    assert (version, count) == (1, len(made))
    assert data[16 : 16 + length].decode() == first.name
    buffers, push, arguments = struct.unpack_from("<3I", data, 16 + length)
    assert (buffers, push, arguments) == (first.buffers, 0, len(first.arguments))
    kind, code, bits, zero, binding = struct.unpack_from("<4BI", data, 28 + length)
    assert (kind, code, bits, zero, binding) == (0, 3, 64, 0, 0)
    assert sum(len(k.code) for k in made) < len(data)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda v: tirx.call_pure_extern("float32", "lgammaf", v), "function lgammaf"),
        (lambda v: tirx.exp(tirx.Cast("float64", v)), "exp of float64"),
    ],
)
def test_what_has_no_form_in_spirv_is_refused_by_name(body: Callable[[Any], Any], reason: str) -> None:
    source = te.placeholder((8,), "float32", "a")
    function = te.create_prim_func([source, te.compute((8,), lambda i: body(source[i]), "b")])
    schedule = s_tir.Schedule(function)
    schedule.bind(schedule.get_loops(schedule.get_sblock("b"))[0], "threadIdx.x")
    with pytest.raises(LoweringError, match=reason):
        device_kernels(tvm.IRModule({"main": schedule.mod["main"]}), vulkan_target(ROOMY), limits_of(ROOMY))


def test_unknown_dtypes_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="bfloat16"):
        parse("bfloat16")
    assert dataclasses.astuple(parse("float32x4")[0]) == ("float", 32)
    assert parse("float32x4")[1] == 4


def test_weights_in_lanes_are_loaded_four_at_a_time(tmp_path: Path) -> None:
    made = kernels(
        Graph({"x": numbers("float32", 1, 3, 8, 8)}, [node("Conv", "x", "w")], {"w": numbers("float32", 13, 3, 3, 3)}),
        tmp_path,
    )
    text = "".join(disassemble(k.code) for k in made)
    assert re.search(r"OpTypeVector \d+ 4\n", text)
    assert text.count("OpCompositeExtract") >= 4
    assert_valid(made)
