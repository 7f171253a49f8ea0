"""Operators that index by data: as ONNX counts, and never outside of the tensor, on every device."""

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


@pytest.mark.parametrize("run", DEVICES)
@pytest.mark.parametrize("beyond", [2**40, -(2**40)], ids=["after", "before"])
def test_indices_out_of_range_mean_the_nearest_element(run: Run, beyond: int, tmp_path: Path) -> None:
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


STEPS = RNG.standard_normal((6, 2)).astype(np.float32)
IMAGES = RNG.standard_normal((2, 1, 6, 6)).astype(np.float32)
ROIS = np.array([[0, 0, 4, 4], [1, 1, 5, 5]], np.float32)
POOLED = RNG.standard_normal((1, 1, 2, 2)).astype(np.float32)


@pytest.mark.parametrize("run", DEVICES)
def test_unpooling_and_reversing_stay_inside_of_their_tensors(run: Run, tmp_path: Path) -> None:
    nodes = [
        node("MaxUnpool", "pooled", "where", kernel_shape=[2, 2], strides=[2, 2]),
        node("ReverseSequence", "steps", "lengths", batch_axis=1, time_axis=0),
    ]
    inside = {"where": np.array([[[[0, 3], [9, 15]]]]), "lengths": np.array([6, 3])}
    beyond = {"where": np.array([[[[0, 3], [9, 2**40]]]]), "lengths": np.array([2**33, 3])}
    _same_inside_and_beyond(run, nodes, {"pooled": POOLED, "steps": STEPS}, inside, beyond, tmp_path)


def test_regions_are_of_images_that_exist(tmp_path: Path) -> None:
    nodes = [node("RoiAlign", "images", "rois", "batches", output_height=2, output_width=2)]
    inside, beyond = {"batches": np.array([1, 0])}, {"batches": np.array([9**9, -(9**9)])}
    _same_inside_and_beyond(on_cpu, nodes, {"images": IMAGES, "rois": ROIS}, inside, beyond, tmp_path)


def _same_inside_and_beyond(
    run: Run, nodes: list[NodeProto], fixed: Arrays, inside: Arrays, beyond: Arrays, folder: Path
) -> None:
    """Indices beyond a tensor's end give the results of indices at its end, which equal ONNX Runtime's."""
    made = model(nodes, {**fixed, **inside}, [n.output[0] for n in nodes], opset=17)
    wanted = run_ort(made, {**fixed, **inside})
    assert_same(run(nodes, {**fixed, **inside}, {}, folder), wanted)
    assert_same(run(nodes, {**fixed, **beyond}, {}, folder), wanted)
