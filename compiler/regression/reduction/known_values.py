"""Values of small integer tensors inside a model, so that they stay constants if the nodes that compute them are cut.

Shapes, axes and indices would otherwise become inputs, which most compilers refuse. The model runs in ONNX Runtime in
a separate process, which it may crash.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler.files.programs import run_tool
from heterocc.compiler.regression.reduction.parts import types_of
from heterocc.runtime.execute.ort_session import open_session, session_options

SECONDS = 60
MAX_ELEMENTS = 1024
_KINDS = (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)


def has_integers(model: onnx.ModelProto) -> bool:
    """Return whether a node may compute integers that another node reads."""
    types, read = types_of(model), {name for node in model.graph.node for name in node.input}
    made = {name for node in model.graph.node for name in node.output if name in read}
    return any(name not in types or types[name].tensor_type.elem_type in _KINDS for name in made)


def known_values(path: Path, folder: Path) -> dict[str, onnx.TensorProto]:
    """The integer and boolean values of at most MAX_ELEMENTS elements, by name; empty if the model does not run."""
    target = folder / "values.json"
    command = [sys.executable, "-m", "heterocc.compiler.regression.reduction.known_values", str(path), str(target)]
    try:
        run_tool(command, timeout=SECONDS)
        listed = json.loads(target.read_text(encoding="utf-8"))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {}
    return {
        name: numpy_helper.from_array(np.array(value["data"], value["dtype"]).reshape(value["shape"]), name)
        for name, value in listed.items()
    }


def _main(path: str, target: str) -> None:
    model = onnx.load(path)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    listed = {info.name for info in model.graph.output}
    for info in inferred.graph.value_info:
        if info.type.tensor_type.elem_type in _KINDS and info.name not in listed:
            model.graph.output.append(info)
    session = open_session(model.SerializeToString(), session_options(optimise="none"))
    stored = {t.name for t in model.graph.initializer}
    rng = np.random.default_rng(0)
    feed: dict[str, Any] = {}
    for info in model.graph.input:
        if info.name not in stored:
            kind = info.type.tensor_type
            shape = [d.dim_value or 1 for d in kind.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            floats = np.issubdtype(dtype, np.floating)
            feed[info.name] = (rng.standard_normal(shape) if floats else np.ones(shape)).astype(dtype)
    found = {}
    for info, value in zip(session.get_outputs(), session.run(None, feed), strict=True):
        if isinstance(value, np.ndarray) and value.dtype.kind in "ib" and value.size <= MAX_ELEMENTS:
            found[info.name] = {"dtype": value.dtype.name, "shape": list(value.shape), "data": value.ravel().tolist()}
    Path(target).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
