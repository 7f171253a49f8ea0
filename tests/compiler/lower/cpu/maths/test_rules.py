"""Rules by which functions become arithmetic."""

from __future__ import annotations

import numpy as np
import tvm
from onnx import helper
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.maths.rules import expand_functions, mark_functions
from tests.compiler.lower.cpu.generate.generated import runnable, target_of
from tests.compiler.lower.lowered import assert_same, model, run_cpu, run_ort


def test_functions_under_a_condition_are_statements_that_the_analyser_does_not_nest() -> None:
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("f")
        x, y = (build.arg(name, build.Buffer((index(64),), "float32")) for name in "xy")
        with build.serial(index(0), index(64)) as v:
            nested = tirx.exp(tirx.log(tirx.sigmoid(x[v - index(1)])))
            inner = tirx.if_then_else(v < index(9), tirx.tanh(nested), nested)
            build.buffer_store(y, tirx.cos(tirx.if_then_else(v > index(0), inner, tirx.const(2.0, "float32"))), [v])
    target = target_of(runnable()[0])
    module = tvm.tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule({"f": builder.get()}))
    text = expand_functions(mark_functions(module)).script()
    assert "if_then_else" not in text and text.count("if ") == 2 and text.count("else:") == 2
    for line in text.splitlines():  # one function at a time
        assert line.count("reinterpret") <= 8, line


def test_an_argument_with_choices_is_computed_once() -> None:
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("f")
        x, y = (build.arg(name, build.Buffer((index(64),), "float32")) for name in "xy")
        with build.serial(index(0), index(64)) as v:
            distance = tirx.Select(v > index(9), v - index(9), index(9) - v).astype("float32")
            build.buffer_store(y, tirx.log(distance + x[v]), [v])
    target = target_of(runnable()[0])
    module = tvm.tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule({"f": builder.get()}))
    lines = expand_functions(mark_functions(module)).script().splitlines()
    assert [line.count("v - T.int64(9)") for line in lines if "T.int64(9)" in line] == [1]
    assert not any("T.int64(9)" in line and "reinterpret" in line for line in lines)


def test_padded_chains_of_functions_are_those_of_onnx_runtime() -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Mul", ["x", "s"], ["m"]),
        helper.make_node("Mean", ["m", "s", "m", "x"], ["mean"]),
        helper.make_node("Softplus", ["mean"], ["soft"]),
        helper.make_node("Pad", ["soft", "pads"], ["first"]),
        helper.make_node("Erf", ["first"], ["erf"]),
        helper.make_node("Pad", ["erf", "pads"], ["y"]),
    ]
    for columns in (4, 16, 37):
        inputs = {"x": np.random.default_rng(columns).standard_normal((3, 5, columns)).astype(np.float32)}
        made = model(nodes, inputs, ["y"], {"pads": np.array([1, 2, 0, 0, 1, 3])})
        assert_same(run_cpu(made, inputs), run_ort(made, inputs))
