"""Operators that index by data: as ONNX counts, and never outside of the tensor, on every device; errors on CPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto, helper

from heterocc.runtime.native import opencl_unavailable_reason
from tests.compiler.lower import gpu_run, opencl_run
from tests.compiler.lower.lowered import assert_same, model, run_cpu, run_ort

Arrays = Mapping[str, np.ndarray]
Run = Callable[[list[NodeProto], Arrays, Arrays, Path], Arrays]

RNG = np.random.default_rng(5)
DATA = RNG.standard_normal((3, 4, 5)).astype(np.float32)
ORDER = RNG.permuted(np.tile(np.arange(5), (3, 4, 1)), axis=2)[:, :, :4]
COLUMNS = np.where(RNG.random(ORDER.shape) < 0.5, ORDER - 5, ORDER)
"""Indices into the last dimension, about half of them negative; none names an element twice."""
PLACES = np.array([[0, -1], [-3, 2], [2, -4]])
UPDATES = RNG.standard_normal((3, 4, 4)).astype(np.float32)
SLICES = RNG.standard_normal((3, 5)).astype(np.float32)
INPUTS = {"data": DATA, "columns": COLUMNS, "places": PLACES, "updates": UPDATES, "slices": SLICES}


def node(op_type: str, *inputs: str, **attributes: object) -> NodeProto:
    name = "_".join([op_type, *(str(v) for v in attributes.values())])
    return helper.make_node(op_type, inputs, [name], **attributes)


NODES = [
    node("GatherElements", "data", "columns", axis=2),
    node("GatherND", "data", "places"),
    node("ScatterElements", "data", "columns", "updates", axis=-1),
    *(node("ScatterElements", "data", "columns", "updates", axis=2, reduction=r) for r in ("add", "mul", "max", "min")),
    node("ScatterND", "data", "places", "slices"),
    *(node("ScatterND", "data", "places", "slices", reduction=r) for r in ("add", "mul", "max", "min")),
]


def on_cpu(nodes: list[NodeProto], inputs: Arrays, constants: Arrays, _folder: Path) -> Arrays:
    made = model(nodes, inputs, [n.output[0] for n in nodes], constants)
    return run_cpu(made, inputs)


def on_opencl(nodes: list[NodeProto], inputs: Arrays, constants: Arrays, folder: Path) -> Arrays:
    copies = []
    for n in nodes:
        copies.append(NodeProto())
        copies[-1].CopyFrom(n)
    graph = gpu_run.Graph(inputs, copies, constants)
    made, lowered = opencl_run.lower(graph, folder)
    values = opencl_run.run(made, lowered, inputs)
    return dict(zip([made.sources[v] for v in made.graph.outputs], values, strict=True))


DEVICES = [
    pytest.param(on_cpu, id="cpu"),
    pytest.param(
        on_opencl,
        id="opencl",
        marks=[
            pytest.mark.opencl,
            pytest.mark.skipif(
                opencl_unavailable_reason() is not None, reason=f"no OpenCL device: {opencl_unavailable_reason()}"
            ),
        ],
    ),
]


@pytest.mark.parametrize("run", DEVICES)
@pytest.mark.parametrize("constant", [False, True], ids=["fed", "constant"])
def test_negative_indices_count_from_the_end(run: Run, constant: bool, tmp_path: Path) -> None:
    fixed = {k: INPUTS[k] for k in ("columns", "places") if constant}
    fed = {k: v for k, v in INPUTS.items() if k not in fixed}
    wanted = run_ort(model(NODES, fed, [n.output[0] for n in NODES], fixed, opset=17), fed)
    assert_same(run(NODES, fed, fixed, tmp_path), wanted)


@pytest.mark.parametrize("run", DEVICES[1:])
@pytest.mark.parametrize("beyond", [2**40, -(2**40)], ids=["after", "before"])
def test_gpus_take_the_nearest_element_for_an_index_out_of_range(run: Run, beyond: int, tmp_path: Path) -> None:
    columns, places = COLUMNS.copy(), PLACES.copy()
    columns[:, :, 0] = beyond
    end = 4 if beyond > 0 else 0
    columns[:, :, 1:] = np.setdiff1d(np.arange(5), [end])[:3]
    places[1] = beyond
    inputs = {**INPUTS, "columns": columns, "places": places}
    clamped = {
        **INPUTS,
        "columns": np.clip(columns, 0, 4),
        "places": np.where(places == beyond, np.array([2, 3]) * (beyond > 0), places),
    }
    wanted = run_ort(model(NODES, clamped, [n.output[0] for n in NODES], opset=17), clamped)
    assert_same(run(NODES, inputs, {}, tmp_path), wanted)


def beside(op_type: str, size: int, table: str, *others: str, **attributes: object) -> tuple[str, NodeProto, int]:
    """The name of an input of indices, a node that reads it, and the size of the dimension of the first number."""
    return table, node(op_type, "data", table, *others, **attributes), size


@pytest.mark.parametrize(
    ("table", "reader", "size"),
    [
        beside("Gather", 4, "places", axis=1),
        beside("GatherElements", 5, "columns", axis=2),
        beside("GatherND", 3, "places"),
        beside("ScatterElements", 5, "columns", "updates", axis=2),
        beside("ScatterND", 3, "places", "slices"),
    ],
    ids=lambda found: found.op_type if isinstance(found, NodeProto) else "",
)
def test_an_index_out_of_range_ends_a_run_on_the_cpu(table: str, reader: NodeProto, size: int) -> None:
    for dtype in (np.int64,) if reader.op_type.endswith("ND") else (np.int64, np.int32):  # what ONNX allows
        inputs = {name: INPUTS[name] for name in reader.input}
        inputs[table] = (COLUMNS if table == "columns" else np.abs(PLACES % 3)).astype(dtype)
        made = model([reader], inputs, list(reader.output), opset=17)
        assert_same(run_cpu(made, inputs), run_ort(made, inputs))
        first = (0,) * inputs[table].ndim
        for bad in (size, -size - 1, np.iinfo(dtype).max, np.iinfo(dtype).min):
            inputs[table][first] = bad
            with pytest.raises(Exception, match=f"{reader.op_type} .*an index is out of range"):
                run_cpu(made, inputs)
            with pytest.raises(Exception, match=r"indice|index|out of bound"):
                run_ort(made, inputs)


STEPS = RNG.standard_normal((6, 2)).astype(np.float32)
IMAGES = RNG.standard_normal((2, 1, 6, 6)).astype(np.float32)
ROIS = np.array([[0, 0, 4, 4], [1, 1, 5, 5]], np.float32)
POOLED = RNG.standard_normal((1, 1, 2, 2)).astype(np.float32)


@pytest.mark.opencl
@pytest.mark.skipif(opencl_unavailable_reason() is not None, reason=f"no OpenCL device: {opencl_unavailable_reason()}")
def test_gpus_reverse_all_for_a_length_that_is_too_large(tmp_path: Path) -> None:
    nodes = [node("ReverseSequence", "steps", "lengths", batch_axis=1, time_axis=0)]
    inputs = {"steps": STEPS, "lengths": np.array([6, 3])}
    wanted = run_ort(model(nodes, inputs, [n.output[0] for n in nodes], opset=17), inputs)
    for lengths in ([6, 3], [2**33, 3]):
        assert_same(on_opencl(nodes, inputs | {"lengths": np.array(lengths)}, {}, tmp_path), wanted)


def reading(reader: NodeProto, **inputs: np.ndarray) -> tuple[NodeProto, Arrays]:
    return reader, inputs


SEQUENCE = RNG.standard_normal((3, 2, 2)).astype(np.float32)
GATES = RNG.standard_normal((1, 6, 2)).astype(np.float32)


@pytest.mark.parametrize(
    ("made", "table", "right", "wrong", "words"),
    [
        (
            reading(node("MaxUnpool", "pooled", "where", kernel_shape=[2, 2], strides=[2, 2]), pooled=POOLED),
            "where",
            [[[[0, 3], [9, 15]]]],
            [[[[[0, 3], [9, 2**40]]]], [[[[0, 16], [9, 15]]]]],
            "an index is out of range",
        ),
        (
            reading(node("RoiAlign", "images", "rois", "n", output_height=2, output_width=2), images=IMAGES, rois=ROIS),
            "n",
            [1, 0],
            [[9**9, 0], [0, 2]],
            "an index is out of range",
        ),
        (
            reading(node("ReverseSequence", "steps", "lengths", batch_axis=1, time_axis=0), steps=STEPS),
            "lengths",
            [6, 3],
            [[7, 3], [6, -1]],
            "a length of a sequence",
        ),
        (
            reading(
                helper.make_node("GRU", ["x", "w", "r", "", "ends"], ["y"], hidden_size=2), x=SEQUENCE, w=GATES, r=GATES
            ),
            "ends",
            np.array([3, 1], np.int32),
            [np.array([4, 1], np.int32), np.array([3, -1], np.int32)],
            "a length of a sequence",
        ),
    ],
    ids=lambda value: value[0].op_type if isinstance(value, tuple) else "",
)
def test_what_onnx_runtime_refuses_ends_a_run_on_the_cpu(
    made: tuple[NodeProto, Arrays], table: str, right: object, wrong: list[object], words: str
) -> None:
    reader, given = made
    inputs = {**given, table: np.array(right)}
    built = model([reader], inputs, list(reader.output), opset=17)
    assert_same(run_cpu(built, inputs), run_ort(built, inputs))
    for bad in wrong:
        with pytest.raises(Exception, match=f"{reader.op_type} .*{words}"):
            run_cpu(built, inputs | {table: np.array(bad)})
        with pytest.raises(Exception, match=r"(?i)indice|index|out of|invalid"):
            run_ort(built, inputs | {table: np.array(bad)})
