from __future__ import annotations

import dataclasses
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.devices.names import generic_gpu
from heterocc.compiler.lower.opencl.lowering import OpenclLowering
from heterocc.runtime.native import opencl_unavailable_reason
from tests.compiler.lower.gpu_run import Graph, conv_of, imported, node, whole
from tests.compiler.lower.opencl_run import check, first_device, lower, run

pytestmark = [
    pytest.mark.opencl,
    pytest.mark.skipif(
        opencl_unavailable_reason() is not None, reason=f"no OpenCL device: {opencl_unavailable_reason()}"
    ),
]

RNG = np.random.default_rng(7)
conv = partial(conv_of, RNG)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, dtype=np.float32)


def test_weights_are_repacked_only_if_one_kernel_reads_them(tmp_path: Path) -> None:
    x = {"x": normal(1, 8, 6, 6)}
    graph = Graph(
        x,
        [
            node("Conv", "x", "own"),
            node("Conv", "x", "other"),
            node("Conv", "x", "both", strides=[2, 2]),
            node("Conv", "x", "both", strides=[3, 3]),
        ],
        {name: normal(16, 8, 3, 3) for name in ("own", "other", "both")},
    )
    lowered = check(graph, tmp_path)
    assert sorted(p.ndim for p in lowered.params) == [4, 5, 5]


def test_a_matrix_product_that_is_masked_by_booleans_matches_onnx_runtime(tmp_path: Path) -> None:
    mask = RNG.integers(0, 2, (1, 1, 4, 4)).astype(bool)
    graph = Graph(
        {"a": normal(1, 2, 4, 8), "b": normal(1, 2, 8, 4), "mask": mask},
        [node("MatMul", "a", "b", outputs=["ab"]), node("Where", "mask", "ab", "low")],
        {"low": np.array(-1e9, np.float32)},
    )
    check(graph, tmp_path)


def test_kernels_have_no_more_tensors_than_every_device_takes(tmp_path: Path) -> None:
    names = [f"x{i}" for i in range(140)]
    nodes = [node("Add", "x0", "x1", outputs=["s1"])]
    nodes += [node("Add", f"s{i - 1}", f"x{i}", outputs=[f"s{i}"]) for i in range(2, 140)]
    inputs = {name: normal(2) for name in names}
    lowered = check(Graph(inputs, nodes), tmp_path)
    assert len(lowered.kernels) > 1
    joined = imported(Graph(inputs, [node("Concat", *names, axis=0)]), tmp_path)
    assert len(OpenclLowering().lower(whole(joined, first_device())).kernels) > 1
    assert OpenclLowering().trial(joined, joined.graph.nodes[0].name, first_device()) is None


def test_elementwise_functions_match_onnx_runtime(tmp_path: Path) -> None:
    names = "Exp Tanh Sigmoid Erf Sin Tan Sinh Atan Asinh Floor Ceil Round Abs Neg Sign Softplus HardSwish Elu".split()
    positive = "Log Sqrt Reciprocal".split()
    small = "Asin Acos Atanh".split()
    x = normal(5, 7)
    nodes = [node(op_type, "x") for op_type in names]
    nodes += [node(op_type, "p") for op_type in positive] + [node(op_type, "s") for op_type in small]
    nodes += [
        node("Pow", "p", "x"),
        node("PRelu", "x", "s"),
        node("Where", "c", "x", "p"),
    ]
    graph = Graph({"x": x, "p": np.abs(x) + 0.5, "s": np.tanh(x) * np.float32(0.9), "c": x > 0}, nodes)
    check(graph, tmp_path)


def test_infinite_doubles_are_not_taken_for_floats_by_the_drivers_compiler(tmp_path: Path) -> None:
    x = RNG.standard_normal((5, 37))
    graph = Graph({"x": x}, [node("ArgMax", "x", axis=1), node("Where", "c", "x", "inf")], {"inf": np.array(-np.inf)})
    check(dataclasses.replace(graph, inputs={"x": x, "c": x > 0}), tmp_path)


def test_scans_and_sorts_are_refused_with_the_reason(tmp_path: Path) -> None:
    graph = Graph(
        {"x": normal(4, 9)},
        [node("CumSum", "x", "axis"), node("TopK", "x", "k", outputs=["values", "indices"])],
        {"axis": np.array(1), "k": np.array([3])},
    )
    model = imported(graph, tmp_path)
    answers = [OpenclLowering().trial(model, n.name, first_device()) for n in model.graph.nodes]
    assert len(answers) == 2
    assert all(answer and re.search("lock step|TVM cannot generate a kernel", answer) for answer in answers), answers


def test_a_dtype_that_the_device_lacks_is_refused_and_names_the_node(tmp_path: Path) -> None:
    model = imported(Graph({"x": normal(4).astype("float16")}, [node("Exp", "x")]), tmp_path)
    device = dataclasses.replace(first_device(), dtypes=frozenset(["float32"]))
    with pytest.raises(LoweringError, match="the device does not support float16") as caught:
        OpenclLowering().lower(whole(model, device))
    assert model.graph.nodes[0].name in (caught.value.where or "")


def test_code_for_a_device_with_small_groups_runs_on_a_larger_one(tmp_path: Path) -> None:
    graph = conv((1, 6, 10, 10), (12, 6, 3, 3), "Relu")
    device = dataclasses.replace(generic_gpu(), target={**generic_gpu().target, "max_num_threads": 16})
    model, lowered = lower(graph, tmp_path, device)
    assert np.allclose(run(model, lowered, graph.inputs)[0], graph.reference()[0], atol=1e-5)


def test_every_kernel_says_which_work_group_it_is_launched_with(tmp_path: Path) -> None:
    """PoCL refuses a launch with another group than the source says, so that the run shows whether they agree."""
    x = np.abs(normal(1, 8, 20, 20))  # a sum of both signs that cancel would show how it is rounded
    nodes = [node("Conv", "x", "w", outputs=["c"]), node("Softmax", "c"), node("ReduceSum", "c", keepdims=0)]
    graph = Graph({"x": x}, nodes, {"w": np.abs(normal(32, 8, 3, 3)) / 8})
    device = dataclasses.replace(first_device(), software=False, unit="discrete")
    lowered = check(graph, tmp_path, device=device)
    sources = [text for name, text in lowered.dumps if name.endswith(".cl")]
    groups = [
        re.search(r"^__kernel __attribute__\(\(reqd_work_group_size\((\d+), 1, 1\)\)\) void \w+\(", s, re.MULTILINE)
        for s in sources
    ]
    assert len(groups) == sum(text.count("__kernel ") for text in sources)
    assert all(groups), sources
    assert len({found[1] for found in groups if found}) > 1


def test_the_parts_of_a_lowered_partition_are_named_and_dumped(tmp_path: Path) -> None:
    model, lowered = lower(conv((1, 4, 8, 8), (32, 4, 3, 3), "Relu"), tmp_path)
    assert {n for kernel in lowered.kernels for n in kernel.nodes} == {n.name for n in model.graph.nodes}
    dumps = dict(lowered.dumps)
    source = "".join(text for name, text in dumps.items() if name.endswith(".cl"))
    assert lowered.kernels[0].symbol in source
    assert lowered.requires == ()
    weight = next(p for p in lowered.params if p.ndim == 5)
    assert weight.shape == (2, 4, 3, 3, 16) or not first_device().software


def test_dumps_name_the_rule_that_scheduled_a_kernel(tmp_path: Path) -> None:
    _, lowered = lower(conv((1, 4, 8, 8), (32, 4, 3, 3), "Relu"), tmp_path)
    assert '"heterocc.rule": "register tile"' in dict(lowered.dumps)["scheduled.py"]
