"""Values that ONNX Runtime computes for a check."""

from __future__ import annotations

import numpy as np
from onnx import helper

from heterocc.compiler.checking.reference import Reference
from tests.compiler.lower.lowered import model


def test_values_of_a_run_do_not_keep_the_memory_of_its_session() -> None:
    """It is gigabytes, as long as one array of them is held, where weights are dequantised to float32."""
    made = model([helper.make_node("Neg", ["x"], ["y"])], {"x": np.ones(8, np.float32)}, ["y"])
    found = Reference(made, ["y"]).run({"x": np.ones(8, np.float32)})["y"]
    assert found.flags.owndata
