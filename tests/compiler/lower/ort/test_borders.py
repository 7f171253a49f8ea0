"""Values that ONNX Runtime's Python package cannot pass are refused at compile, not at run time."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.errors import UnsupportedOpError
from heterocc.compiler import compile_model


@pytest.mark.parametrize(
    ("given", "wanted", "reason"),
    [
        (TensorProto.FLOAT, TensorProto.INT2, "no arrays of int2, the dtype of 'y'"),
        (TensorProto.INT8, TensorProto.UINT2, "no arrays of uint2, the dtype of 'y'"),
        (TensorProto.FLOAT8E8M0, TensorProto.FLOAT, "no arrays of float8_e8m0fnu, the dtype of 'x'"),
        (TensorProto.FLOAT, TensorProto.FLOAT4E2M1, "no arrays of float4_e2m1fn, the dtype of 'y'"),
        (TensorProto.STRING, TensorProto.BFLOAT16, "does not pass strings and bfloat16 together"),
        (TensorProto.STRING, TensorProto.INT4, "does not pass strings and int4 together"),
    ],
)
def test_a_cast_whose_values_onnx_runtime_cannot_pass_is_refused(
    given: int, wanted: int, reason: str, tmp_path: Path
) -> None:
    ends = [helper.make_tensor_value_info(name, kind, [3]) for name, kind in (("x", given), ("y", wanted))]
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=wanted)], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    with pytest.raises(UnsupportedOpError, match=reason):
        compile_model(model, tmp_path / "m.hcb", devices="CPU,ORT")
