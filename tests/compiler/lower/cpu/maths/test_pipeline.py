"""TVM's passes over generated kernels: what they must have done before a kernel is code."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build
from tvm.tirx import get_tir_pipeline

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from tests.compiler.lower.cpu.generate.generated import Generated, runnable, target_of


@pytest.mark.parametrize(
    ("node", "inputs", "vectors"),
    [
        (helper.make_node("Concat", ["a", "b"], ["y"], axis=1), "ab", 2),
        (helper.make_node("Pad", ["a", "p"], ["y"], mode="edge"), "a", 1),
    ],
)
def test_what_lanes_read_is_decided_before_they_are_vectors(node: onnx.NodeProto, inputs: str, vectors: int) -> None:
    target = target_of(runnable()[0])
    feeds = {name: np.zeros((19, 64), np.float32) for name in inputs}
    kernel = Generated([node], feeds, {"p": np.array([0, 3, 0, 3])} if "p" in node.input else {}, target)
    assert kernel.done is not None
    module = tvm.IRModule({"f": kernel.done[0].with_attr("global_symbol", "f")})
    with tvm.transform.PassContext(opt_level=3):
        lowered = get_tir_pipeline(PIPELINE)[0](tvm.tirx.transform.BindTarget(target.with_host(target))(module))
    script = lowered.script()
    assert script.count("T.Ramp(") >= vectors, "rows of the input are not read in vectors"


def test_buffers_in_use_one_after_the_other_have_memory_of_their_own() -> None:
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("f")
        x, y = (build.arg(name, build.Buffer((index(64),), "float32")) for name in "xy")
        for place, buffer in enumerate((emit.scratch(16), emit.registers(1, 16))):
            with emit.loop(2):  # a buffer's first and last use lie in the loop
                emit.put(buffer, emit.vector(x, index(16 * place), 16), index(0), 16)
                emit.put(y, emit.vector(buffer, index(0), 16), index(16 * place), 16)
    target = target_of(runnable()[0])
    module = tvm.tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule({"f": builder.get()}))
    counts = []
    for pipeline in ("default", PIPELINE):
        with tvm.transform.PassContext(opt_level=3):
            counts.append(get_tir_pipeline(pipeline)[0](module).script().count("T.alloc_buffer("))
    assert counts == [1, 2], "sums in the memory of another buffer would not be registers"
