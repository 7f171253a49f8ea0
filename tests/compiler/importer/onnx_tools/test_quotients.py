"""Divisions that would end the process in which ONNX Runtime does them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from heterocc.compiler import compile_model
from heterocc.compiler.importer.onnx_tools.onnx_runtime import open_session
from heterocc.compiler.importer.onnx_tools.quotients import has_quotients
from heterocc.compiler.importer.onnx_tools.safe import safe_model
from heterocc.runtime import load

_LEAST = """
    most = Constant <value = int64[1] {-9223372036854775807}> ()
    one = Constant <value = int64[1] {1}> ()
    least = Sub (most, one)
    half = Constant <value = float[1] {0.5}> ()
    between = Sigmoid (x)
    less = Mul (between, half)
    whole = Floor (less)
    unit = Constant <value = float[1] {1.0}> ()
    below = Sub (whole, unit)
    minus = Cast <to = 7> (below)
"""
"""The least integer, and -1 that only a run computes."""


def _model(nodes: str, functions: str = "") -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17, "own" : 1]> g (float[n] x) => (int64[n] y) {{ {_LEAST} {nodes} }}'
        + functions
    )


@pytest.mark.parametrize(
    ("nodes", "functions"),
    [
        ("y = Div (least, minus)", ""),
        (
            "p = Constant <value = bool {1}> () y = If (p) <then_branch = t () => (int64[n] u) { u = Div (least, minus)"
            " }, else_branch = e () => (int64[n] v) { v = Mul (least, minus) }>",
            "",
        ),
        (
            "y = own.quotient (least, minus)",
            '<domain: "own", opset_import: ["" : 17]> quotient (a, b) => (c) { c = Div (a, b) }',
        ),
    ],
    ids=["plain", "branch", "function"],
)
def test_a_model_that_divides_the_least_integer_by_minus_one_compiles(
    nodes: str, functions: str, tmp_path: Path
) -> None:
    """The runs of a compile that look for shapes, and that the check compares with, ended the process."""
    compile_model(_model(nodes, functions), tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"x": np.ones(3, np.float32)})["y"].tolist() == [-(2**63)] * 3


@pytest.mark.parametrize("dtype", ["float", "double", "int32", "int64"])
def test_quotients_of_unknown_dtypes_are_those_of_their_dtype(dtype: str) -> None:
    name = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    call = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 13, "own" : 1]>
        g ({dtype}[n] a, {dtype}[n] b) => ({dtype}[n] y) {{ y = own.quotient (a, b) }}
        <domain: "own", opset_import: ["" : 13]> quotient (a, b) => (c) {{ c = Div (a, b) }}"""
    )
    assert has_quotients(call)
    a, b = np.array([7, -7, 8, 3, -3], name), np.array([-1, -1, 2, 1, -2], name)
    wanted = [-7, 7, 4, 3, 1]
    if name.startswith("f"):
        a, b = np.append(a, [1, -1, np.nan, 5, 0]).astype(name), np.append(b, [0, 0, -1, np.inf, -1]).astype(name)
        with np.errstate(all="ignore"):
            wanted = list(a / b)
    else:
        least = np.iinfo(name).min
        a, b, wanted = np.append(a, least).astype(name), np.append(b, -1).astype(name), [*wanted, least]
    session = open_session(call)
    np.testing.assert_array_equal(session.run(None, {"a": a, "b": b})[0], np.array(wanted, name))
    if not name.startswith("f"):
        with pytest.raises(Exception, match="division by zero"):
            session.run(None, {"a": a, "b": b * 0})


def test_a_model_without_divisions_of_integers_by_minus_one_stays_as_it_is() -> None:
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n] x, int64[n] i) => (float[n] y, int64[n] j) <int64[1] two = {2}> {
            y = Div (x, x)
            j = Div (i, two)
        }"""
    )
    assert safe_model(model) is model
