"""Hints name the length of a vector, or of the last axis of indices, that the ranks of a node's tensors need."""

from __future__ import annotations

import onnx
import pytest

from heterocc.artifacts.errors import Hint, UnsupportedOpError
from heterocc.compiler import partition_model

CASES = {
    "Reshape": ("(float[n, m] x, int64[k] s) => (float[a, b, c] y) { y = Reshape(x, s) }", "k=3"),
    "Expand": ("(float[n] x, int64[k] s) => (float[a, b] y) { y = Expand(x, s) }", "k=2"),
    "Squeeze": ("(float[n, m, 1] x, int64[k] s) => (float[n, m] y) { y = Squeeze(x, s) }", "k=1"),
    "Unsqueeze": ("(float[n, m] x, int64[k] s) => (float[a, b, c, d] y) { y = Unsqueeze(x, s) }", "k=2"),
    "GatherND": ("(float[n, m] x, int64[i, j] d) => (float[i, m] y) { y = GatherND(x, d) }", "j=1"),
    "ScatterND of rows": (
        "(float[n, m] x, int64[i, j] d, float[i, m] u) => (float[n, m] y) { y = ScatterND(x, d, u) }",
        "j=1",
    ),
    "ScatterND of elements": (
        "(float[n, m] x, int64[i, j] d, float[i] u) => (float[n, m] y) { y = ScatterND(x, d, u) }",
        "j=2",
    ),
}


@pytest.mark.parametrize(("text", "fixed"), CASES.values(), ids=list(CASES))
def test_the_length_in_a_hint_is_the_one_with_which_the_cpu_takes_the_model(text: str, fixed: str) -> None:
    proto = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g ' + text)
    with pytest.raises(UnsupportedOpError) as refused:
        partition_model(proto, devices="CPU")
    assert isinstance(refused.value.hint, Hint)
    assert refused.value.hint.command.endswith(f"the length that the ranks of its tensors need, --dim {fixed}")
    name, size = fixed.split("=")
    assert partition_model(proto, devices="CPU", dims={name: int(size)}).plan.partitions
