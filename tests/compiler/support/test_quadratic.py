"""Transforms of a length that a request gives are left to ONNX Runtime, where it is listed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from heterocc.compiler import partition_model
from tests.compiler.onnx_build import model, node, value

I64 = onnx.TensorProto.INT64
STEP = {"step": np.array(16)}
WINDOW = {"window": np.ones(32, np.float32)}
DFT = {
    "the signal's length": (["b", "n", 1], "x", [], {}, True),
    "a length that is an input": ([2, 64, 1], "x length", [value("length", [], I64)], {}, True),
    "an axis that is an input": ([2, 64, 1], "x - axis", [value("axis", [], I64)], {}, True),
    "any batch": (["b", 64, 1], "x", [], {}, False),
    "a constant length of any signal": (["b", "n", 1], "x length", [], {"length": np.array(64)}, False),
}
STFT = {
    "a step that is an input": ([2, 640, 1], "x step window", [value("step", [], I64)], WINDOW, True),
    "a window that is an input": (["b", "n", 1], "x step window", [value("window", [32])], STEP, True),
    "frames of a length that is an input": ([2, 640, 1], "x step - size", [value("size", [], I64)], STEP, True),
    "a constant window of any signal": (["b", "n", 1], "x step window", [], STEP | WINDOW, False),
    "a window that is an input of a fixed size": ([2, 640, 1], "x step window", [value("window", [32])], STEP, False),
}
CASES = [("DFT", *case) for case in DFT.values()] + [("STFT", *case) for case in STFT.values()]


@pytest.mark.parametrize(("op_type", "shape", "inputs", "more", "weights", "left"), CASES, ids=[*DFT, *STFT])
def test_a_transform_whose_length_a_request_gives_runs_in_onnx_runtime_unless_the_cpu_is_alone(
    op_type: str,
    shape: list[int | str],
    inputs: str,
    more: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray],
    left: bool,
) -> None:
    transform = node(op_type, inputs, "y")
    proto = model([transform], [value("x", shape), *more], [value("y")], weights, opset=20)
    for devices, wanted in (("CPU,ORT", "ORT" if left else "CPU"), ("CPU", "CPU")):
        plan = partition_model(proto, devices=devices).plan
        assert [p.device for p in plan.partitions] == [wanted]
