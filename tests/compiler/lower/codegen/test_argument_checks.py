"""Kernels check their sizes once, and what operators demand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build
from tvm.tirx.build import codegen_build

from heterocc.compiler.lower.codegen import kernel_objects
from heterocc.compiler.lower.codegen.argument_checks import with_few_checks
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.runtime.execute.memory import host_tensor
from tests.compiler.lower.lowered import CPU


def doubled() -> tuple[tvm.IRModule, Callable[..., None]]:
    """A kernel of rows [n, 3] and [n, 3] whose first number must not be negative: what is lowered, and the function."""
    n, zero = tirx.Var("n", "int64"), tirx.const(0, "int64")
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("double")
        given = build.arg("given", build.Buffer((n, tirx.const(3, "int64")), "float32"))
        result = build.arg("result", build.Buffer((n, tirx.const(3, "int64")), "float32"))
        positive = tirx.AssertStmt(given[zero, zero] >= 0.0, StringImm("ValueError"), [StringImm("it is negative")])
        build.add_to_parent(positive)
        with build.serial(zero, n) as row, build.serial(zero, tirx.const(3, "int64")) as column:
            build.buffer_store(result, given[row, column] * 2.0, [row, column])
    function = builder.get().with_attr("global_symbol", "double")
    target = cpu_target(CPU)
    lowered = with_few_checks(kernel_objects._lowered("double", function, target, PIPELINE))
    return lowered, codegen_build(lowered, target)["double"]


def test_a_kernel_of_dynamic_sizes_has_one_check_of_them_and_that_of_its_operator() -> None:
    lowered, _ = doubled()
    found: list[tirx.AssertStmt] = []
    for _, function in lowered.functions_items():
        tvm_ffi.structural_walk(function.body, [(tirx.AssertStmt, found.append)], order="pre")
    assert len(found) == 2


def test_a_kernel_refuses_sizes_that_do_not_agree_and_what_its_operator_refuses() -> None:
    _, double = doubled()
    given, result = np.ones((4, 3), np.float32), np.zeros((4, 3), np.float32)
    double(host_tensor(given), host_tensor(result))
    np.testing.assert_array_equal(result, 2 * given)
    with pytest.raises(ValueError, match="sizes of a kernel's arguments do not agree"):
        double(host_tensor(given), host_tensor(np.zeros((5, 3), np.float32)))
    with pytest.raises(ValueError, match="it is negative"):
        double(host_tensor(-given), host_tensor(result))
