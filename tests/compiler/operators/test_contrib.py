"""Shapes of results of ONNX Runtime's operators, and of operators that get a size as data."""

from __future__ import annotations

import onnx.parser
import pytest

from heterocc.compiler.importer.pipeline import import_model

X = "float[batch,seq,8] x"


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (
            f"({X}, float[8] g) => (float[a,b,c] y) {{ y = com.microsoft.SkipLayerNormalization(x, x, g) }}",
            "batch seq 8",
        ),
        (f"({X}) => (float[a,b,c] y) {{ y = com.microsoft.FusedMatMul<transB = 1>(x, x) }}", "batch seq seq"),
        (f"({X}) => (float[a,b,c] y) {{ y = com.microsoft.QuickGelu(x) }}", "batch seq 8"),
        (
            "(float[n,8,c] x) => (float[a,b,d,e] y) <int64[2] s = {4,5}, int64[2] k = {2,2}> { y = Col2Im(x, s, k) }",
            "n 2 4 5",
        ),
        ("(float[n,3,h,w] x) => (float[a,b,d,e] y) { y = MeanVarianceNormalization(x) }", "n 3 h w"),
        (
            "(float[n,3,h,w] x) => (float[a,b,d,e] y) <float[2] s = {2,2}> { y = Resize<axes = [3, 2]>(x, , s) }",
            "n 3 2*h 2*w",
        ),
    ],
)
def test_the_shape_of_a_result_follows_from_the_inputs(text: str, shape: str) -> None:
    made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20, "com.microsoft" : 1]> agraph {text}')
    model = import_model(made, keep_dims=True)
    found = model.graph.values[model.graph.outputs[0]].shape
    assert " ".join(map(str, found or ())) == shape
