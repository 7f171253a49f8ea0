"""Shapes of poolings, transposed convolutions and resizes are those of runs where ONNX infers others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.runtime import load
from tests.compiler.onnx_build import branch, model, node, noise, value
from tests.reference import reference_session


def _pooling(draw: random.Random) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    op_type, opset = draw.choice(["MaxPool", "AveragePool", "LpPool"]), draw.choice([10, 11, 18, 19, 22])
    kernel = [draw.randint(1, 4) for _ in range(draw.choice([1, 2, 3]))]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw.randint(1, 5) for _ in kernel]}
    attributes["auto_pad"] = draw.choice(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
    if attributes["auto_pad"] == "NOTSET":
        attributes["pads"] = [draw.randint(0, k - 1) for k in (*kernel, *kernel)]
    if opset >= 19 or op_type == "MaxPool":
        attributes["dilations"] = [draw.choice([1, 1, 2, 3]) for _ in kernel]
    if opset >= 18 or op_type != "LpPool":
        attributes["ceil_mode"] = 1
    shape = (1, 2, *(draw.randint(3, 9) for _ in kernel))
    return model([node(op_type, "x", "y", **attributes)], [value("x", shape)], [value("y")], opset=opset), shape


def _transposed(draw: random.Random) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    kernel = [draw.randint(1, 4) for _ in range(draw.choice([1, 2]))]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw.randint(1, 3) for _ in kernel]}
    attributes["auto_pad"] = draw.choice(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
    which = draw.choice(["output_padding", "output_shape"])
    attributes[which] = [draw.randint(0, 1) if which == "output_padding" else draw.randint(4, 12) for _ in kernel]
    shape = (1, 2, *(draw.randint(2, 6) for _ in kernel))
    made = node("ConvTranspose", "x w", "y", **attributes)
    return model([made], [value("x", shape)], [value("y")], {"w": noise(2, 3, *kernel)}), shape


def _resized(draw: random.Random) -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """By scales whose product with a size is a whole number only if it is rounded to float32."""
    opset, shape = draw.choice([9, 10, 11, 13, 18]), (1, 2, *(10 * draw.randint(1, 32) for _ in range(2)))
    scales = np.array([1, 1, *(draw.randint(11 if opset == 9 else 3, 29) / 10 for _ in range(2))], np.float32)
    read = {9: "x scales", 10: "x scales", 11: "x roi scales", 13: "x - scales", 18: "x - scales"}[opset]
    made = node("Upsample" if opset == 9 else "Resize", read, "y", mode="nearest")
    constants = {"scales": scales} | ({"roi": np.zeros(0, np.float32)} if opset == 11 else {})
    return model([made], [value("x", shape)], [value("y")], constants, opset=opset), shape


@pytest.mark.parametrize(("draw_one", "most"), [(_pooling, 120), (_transposed, 100), (_resized, 60)])
def test_imported_shapes_are_those_of_a_run(draw_one: Any, most: int) -> None:
    draw, compared, misjudged = random.Random(0), 0, 0
    for _ in range(most):
        proto, shape = draw_one(draw)
        try:
            (found,) = reference_session(proto).run(None, {"x": np.zeros(shape, np.float32)})
        except Exception:  # such as windows in the padding alone: ONNX Runtime runs no such model
            continue
        if found.size == 0:
            continue
        imported = import_model(proto)
        assert imported.graph.values[imported.graph.outputs[0]].shape == found.shape, onnx.printer.to_text(proto)
        inferred = onnx.shape_inference.infer_shapes(proto).graph.output[0].type.tensor_type.shape.dim
        compared, misjudged = compared + 1, misjudged + ([d.dim_value for d in inferred] != list(found.shape))
    assert compared > most // 2 and misjudged > 5


POOL = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
SHAPE_OF_POOL = (
    node("AveragePool", "x", "a", **POOL),
    node("Shape", "a", "s"),
    node("Gather", "s places", "k"),
    node("Concat", "k rest", "r", axis=0),
    node("Reshape", "a r", "y"),
)
BRANCHES = (
    node("ReduceMax", "x", "most", keepdims=0),
    node("Greater", "most zero", "c"),
    node(
        "If",
        "c",
        "y",
        then_branch=branch("then", node("MaxPool", "x", "r", **POOL)),
        else_branch=branch("else", node("AveragePool", "x", "q", **POOL), output="q"),
    ),
)
TWICE = (node("MaxPool", "x", "a", **POOL), node("Relu", "a", "b"), node("LpPool", "b", "y", **POOL))
CONSTANTS = {"places": np.array([0, 1]), "rest": np.array([-1]), "zero": np.array(0, np.float32)}


@pytest.mark.parametrize("devices", ["CPU", "CPU,ORT"])
@pytest.mark.parametrize(
    ("nodes", "dims"),
    [
        (SHAPE_OF_POOL, [2, 2, 5, 5]),
        (SHAPE_OF_POOL, ["n", 2, 5, 5]),
        (BRANCHES, ["n", 2, 5, 5]),
        (TWICE, [2, 2, 5, 5]),
        (TWICE, ["n", 2, "h", "w"]),
    ],
    ids=["shape", "shape-batch", "branches", "twice", "twice-any"],
)
def test_what_follows_such_a_pooling_has_its_real_shape(tmp_path: Path, nodes: Any, dims: Any, devices: str) -> None:
    read = {name for n in nodes for name in n.input}
    constants = {name: array for name, array in CONSTANTS.items() if name in read}
    proto = model([*nodes, node("Relu", "y", "z")], [value("x", dims)], [value("z")], constants, opset=18)
    compile_model(proto, tmp_path / "m.hcb", devices=devices)
    x = noise(2, 2, 5, 5)
    with load(tmp_path / "m.hcb") as session:
        (right,) = reference_session(proto).run(None, {"x": x})
        np.testing.assert_allclose(session.run({"x": x})["z"], right, rtol=1e-4, atol=1e-5)
