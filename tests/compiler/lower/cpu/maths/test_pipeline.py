"""TVM's passes over generated kernels: what they must have done before a kernel is code."""

from __future__ import annotations

import numpy as np
import tvm
from onnx import helper
from tvm.tirx import get_tir_pipeline

from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from tests.compiler.lower.cpu.generate.generated import Generated, runnable, target_of


def test_conditions_that_a_part_of_a_loop_decides_are_not_left_to_the_lanes_of_vectors() -> None:
    x = np.zeros((19, 64), np.float32)
    target = target_of(runnable()[0])
    kernel = Generated([helper.make_node("Concat", ["a", "b"], ["y"], axis=1)], {"a": x, "b": x}, {}, target)
    assert kernel.done is not None and "if_then_else" in kernel.done[0].script()
    passes = get_tir_pipeline(PIPELINE)[0]
    module = tvm.IRModule({"f": kernel.done[0].with_attr("global_symbol", "f")})
    with tvm.transform.PassContext(opt_level=3):
        lowered = passes(tvm.tirx.transform.BindTarget(target.with_host(target))(module))
    assert lowered.script().count("T.Ramp(") == 2, "the rows of an input are not read in vectors"
