"""A model whose run does not end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, helper

from tests.compiler.onnx_build import I64, model, node, save, value


def endless(folder: Path, *others: NodeProto, trips: int = 10**9) -> Path:
    """A loop that adds for hours, beside other nodes."""
    body = helper.make_graph(
        [node("Add", "s x", "t"), node("Identity", "go", "on")],
        "body",
        [value("i", [], I64), value("go", [], TensorProto.BOOL), value("s", [1])],
        [value("on", [], TensorProto.BOOL), value("t", [1])],
    )
    loop = node("Loop", "n - x", "y", body=body)
    inputs, outputs = [value("x", [1])], [value("y", [1])]
    if others:
        inputs.append(value("words", [2], TensorProto.STRING))
        outputs.append(value("lower", [2], TensorProto.STRING))
    return save(folder, model([loop, *others], inputs, outputs, {"n": np.array(trips)}))
