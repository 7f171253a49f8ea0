"""Pad with negative numbers, which crop the data before the rest is wrapped, reflected, repeated or surrounded.

What surrounds it may be a number that the model computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, noise, value
from tests.reference import reference_session

X = noise(4, 6)
COMPUTED = [
    node("Shape", "x", "sizes"),
    node("Gather", "sizes places", "four"),
    node("Mul", "four zero", "zeros"),
    node("Add", "p zeros", "pads"),
]


@pytest.mark.parametrize("computed", [False, True], ids=["known", "computed"])
@pytest.mark.parametrize(
    ("mode", "pads", "axes"),
    [
        ("wrap", [-1, 2, 2, -1], [-1, 0]),
        ("wrap", [2, -1, 2, -1], None),
        ("reflect", [0, -1, 1, 2], None),
        ("edge", [-1, 2, 0, -1], None),
        ("constant", [-1, 2, 2, -1], None),
    ],
)
def test_negative_pads_crop_first(
    tmp_path: Path, mode: str, pads: Sequence[int], axes: Sequence[int] | None, computed: bool
) -> None:
    constants = {"p": np.array(pads)}
    if axes is not None:
        constants["axes"] = np.array(axes)
    if computed:
        constants |= {"places": np.zeros(4, np.int64), "zero": np.array(0)}
    rest = " - axes" if axes else " largest" if mode == "constant" else ""
    pad = node("Pad", f"x {'pads' if computed else 'p'}{rest}", "y", mode=mode)
    nodes = [*(COMPUTED if computed else ()), node("ReduceMax", "x", "largest", keepdims=0), pad]
    proto = model(nodes, [value("x", ["a", "b"] if computed else [4, 6])], [value("y")], constants, opset=19)
    compile_model(proto, tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], reference_session(proto).run(None, {"x": X})[0])
