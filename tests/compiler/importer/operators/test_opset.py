"""The import of older and newer operator sets."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import (
    F32,
    I64,
    assert_close,
    branch,
    conv_chain,
    imported_like,
    model,
    node,
    noise,
    run_imported,
    save,
    value,
)

BOOL = TensorProto.BOOL


OLD = {
    "upsample-9": (
        [node("Upsample", "x scales", "y", mode="nearest")],
        9,
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "upsample-linear-9": (
        [node("Upsample", "x scales", "y", mode="linear")],
        9,
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "upsample-7": ([node("Upsample", "x", "y", mode="nearest", scales=[1.0, 1.0, 2.0, 3.0])], 7, {}),
    "resize-10": (
        [node("Resize", "x scales", "y", mode="nearest")],
        10,
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "softmax-11": ([node("Softmax", "x", "y", axis=1)], 11, {}),
    "log-softmax-11": ([node("LogSoftmax", "x", "y")], 11, {}),
    "dropout-7": ([node("Dropout", "x", "y", ratio=0.5)], 7, {}),
    "slice-9": ([node("Slice", "x", "y", axes=[2, 3], starts=[1, -3], ends=[4, 9223372036854775807])], 9, {}),
    "pad-10": ([node("Pad", "x", "y", pads=[0, 0, 1, 2, 0, 0, 1, 0], value=0.5)], 10, {}),
    "clip-6": ([node("Clip", "x", "y", min=-0.5, max=0.5)], 9, {}),
    "reduce-sum-11": ([node("ReduceSum", "x", "y", axes=[1, 2], keepdims=0)], 11, {}),
    "squeeze-11": ([node("Unsqueeze", "x", "u", axes=[0]), node("Squeeze", "u", "y", axes=[0, 1])], 11, {}),
    "split-11": ([node("Split", "x", "a y", axis=1, split=[1, 2])], 11, {}),
    "top-k-9": ([node("TopK", "x", "y i", k=3)], 9, {}),
    "batch-norm-8": (
        [node("BatchNormalization", "x s s s v", "y")],
        8,
        {"s": noise(3), "v": np.abs(noise(3)) + 0.1},
    ),
    "cast-9": ([node("Cast", "x", "c", to=I64), node("Cast", "c", "y", to=F32)], 9, {}),
    "gemm-9": (
        [node("Flatten", "x", "f"), node("Gemm", "f w b", "y", transB=1)],
        9,
        {"w": noise(4, 75), "b": noise(4)},
    ),
    "max-pool-8": ([node("MaxPool", "x", "y", kernel_shape=[2, 2], auto_pad="SAME_UPPER")], 8, {}),
    "p-relu-9": ([node("PRelu", "x s", "y")], 9, {"s": noise(3, 1, 1)}),
    "scan-of-means-12": ([node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "y")], 12, {}),
    "hard-swish-14": ([node("HardSwish", "x", "y")], 14, {}),
    "dynamic-quantize-11": (
        [node("DynamicQuantizeLinear", "x", "q s z"), node("DequantizeLinear", "q s z", "y")],
        11,
        {},
    ),
    "instance-norm-7": ([node("InstanceNormalization", "x s b", "y")], 7, {"s": noise(3), "b": noise(3)}),
    "equal-9": (
        [
            node("Floor", "x", "f"),
            node("Cast", "f", "c", to=I64),
            node("Equal", "c c", "e"),
            node("Cast", "e", "y", to=F32),
        ],
        9,
        {},
    ),
}


@pytest.mark.parametrize("case", OLD)
def test_older_operator_sets_are_raised_and_mean_the_same(tmp_path: Path, case: str) -> None:
    nodes, opset, constants = OLD[case]
    for index, made in enumerate(nodes):
        made.name = f"n{index}"
    proto = model(nodes, [value("x", [1, 3, 5, 5])], [value("y")], constants, opset=opset, ir_version=4)
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 3, 5, 5)})
    assert found.opsets[""] == 17 and not found.notes
    assert all(n.original and set(n.original) <= {m.name for m in nodes} for n in found.graph.nodes)


def test_what_only_old_versions_mean_follows_their_definition_where_onnx_runtime_lacks_them(tmp_path: Path) -> None:
    x, slope = noise(2, 4, 4), noise(4, seed=1)
    nodes = [node("PRelu", "x s", "p"), node("Cast", "p", "d", to=11), node("Clip", "d", "y", max=0.5)]
    made = model(nodes, [value("x", [2, 4, 4])], [value("y", None, 11)], {"s": slope}, opset=6, ir_version=3)
    made.graph.input.append(value("s", [4]))
    (found,) = run_imported(import_model(save(tmp_path, made)), {"x": x})
    assert_close([found], [np.minimum(np.where(x < 0, x * slope[:, None], x).astype(np.float64), 0.5)])


@pytest.mark.parametrize(
    ("made", "settled"), [(node("Relu", "x", "y"), 17), (node("Gelu", "x", "y"), 20), (node("Swish", "x", "y"), 17)]
)
def test_newer_operator_sets_are_lowered_as_far_as_nothing_changes(
    tmp_path: Path, made: onnx.NodeProto, settled: int
) -> None:
    proto = model([made], [value("x", [3])], [value("y")], opset=24, ir_version=12)
    found = import_model(save(tmp_path, proto))
    assert found.opsets[""] == settled and found.proto.ir_version == 10
    expected = [np.asarray(r) for r in ReferenceEvaluator(proto).run(None, {"x": noise(3)})]
    assert_close(run_imported(found, {"x": noise(3)}), expected)


def test_a_model_that_cannot_be_raised_stays_as_it_is_and_says_so(tmp_path: Path) -> None:
    choose = node(
        "If",
        "c",
        "y",
        then_branch=branch("t", node("Softmax", "x", "r", axis=1)),
        else_branch=branch("e", node("Relu", "x", "r")),
    )
    proto = model([choose], [value("x", [2, 3, 4]), value("c", [], BOOL)], [value("y")], opset=11)
    found = imported_like(save(tmp_path, proto), {"x": noise(2, 3, 4), "c": np.array(True)})
    assert found.opsets[""] == 11
    assert any("operator set 11" in note and "Softmax" in note for note in found.notes)


def test_affinity_survives_a_raised_operator_set_and_fused_neighbours(tmp_path: Path) -> None:
    nodes, constants = conv_chain()
    for made in nodes:
        made.metadata_props.add(key="affinity", value="OPENCL")
    nodes.append(node("Softmax", "y", "z", "last"))
    nodes[-1].metadata_props.add(key="affinity", value="CPU")
    proto = model(nodes, [value("x", [1, 3, 8, 8])], [value("z")], constants, opset=11)
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 3, 8, 8)})
    assert found.graph.nodes[0].affinity == "OPENCL"
    assert {n.affinity for n in found.graph.nodes[1:]} == {"CPU"}


def test_initializers_listed_as_inputs_are_constants(tmp_path: Path) -> None:
    proto = model(
        [node("Add", "x w", "y")], [value("x", [3]), value("w", [3])], [value("y")], {"w": noise(3)}, ir_version=3
    )
    found = import_model(save(tmp_path, proto))
    assert found.graph.inputs == ("x",) and found.graph.constants == {"w"}
