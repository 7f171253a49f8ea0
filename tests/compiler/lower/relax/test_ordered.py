"""Kernels take sizes in the order in which they use them, so that a model's kernels are the same in every process."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, te, tirx

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.compiler.lower.relax.ordered import sizes_in_order
from heterocc.compiler.lower.straight import bindings_of
from tests.compiler.lower.lowered import CPU, job
from tests.compiler.onnx_build import model as onnx_model
from tests.compiler.onnx_build import node, value


def kernel(order: str) -> tirx.PrimFunc:
    """A kernel that uses sizes `a`, `b` and `c` in this order, with parameters in another."""
    sizes = {name: tirx.Var(name, "int64") for name in "abc"}
    data = te.placeholder([sizes["a"] + 1], "int64", "data")
    result = te.compute([sizes["a"] + 1], lambda i: data[i] + sizes["b"] * 2 + sizes["c"])
    return te.create_prim_func([data, *(sizes[name] for name in order), result])


def test_kernels_that_differ_by_the_order_of_their_sizes_become_one() -> None:
    sizes = {name: tirx.Var(name, "int64") for name in "nml"}
    x = relax.Var("x", relax.TensorType([*sizes.values(), sizes["n"] + 1], "int64"))
    data = relax.Var("data", relax.TensorType([sizes["n"] + 1], "int64"))
    builder = relax.BlockBuilder()
    kernels = [builder.add_func(kernel(order), "kernel") for order in ("cab", "abc")]
    with builder.function("main", params=[x, data]):
        with builder.dataflow():
            given = [[data, *(sizes[name] for name in names)] for names in ("lnm", "nml")]
            calls = [relax.call_tir(k, g, data.ty) for k, g in zip(kernels, given, strict=True)]
            result = builder.emit_output(relax.Tuple([builder.emit(call) for call in calls]))
        builder.emit_func_output(result)
    done = sizes_in_order(builder.get())
    (one,) = _kernels(done)
    assert [param.name for param in one.params[1:-1]] == list("abc")
    for binding in bindings_of(done["main"]):
        assert [size.name for size in binding.value.args[1].fields[1:]] == list("nml")


def test_sizes_of_a_fused_kernel_are_in_the_order_of_its_tensors() -> None:
    """TVM finds them in a set of places in memory, in which five sizes are in this order once in 120 times."""
    sizes = list("ecadb")
    axes = {"starts": [0] * 5, "ends": [2**31] * 5, "steps": [2] * 5}
    constants: dict[str, np.ndarray] = {name: np.array(row, np.int64) for name, row in axes.items()}
    constants |= {"axes": np.arange(5), "weights": np.ones((4, 8), np.float32), "bias": np.ones(8, np.float32)}
    nodes = [
        node("Slice", "x starts ends axes steps", "halves"),
        node("MatMul", "halves weights", "product"),
        node("Add", "product bias", "sum"),
        node("Sigmoid", "sum", "y"),
    ]
    made = onnx_model(nodes, [value("x", [*sizes, 4])], [value("y", [*"vwxyz", 8])], constants)
    done = kernel_module(job(import_model(made, keep_dims=True)), cpu_target(CPU)).mod
    found = [[p.name for p in f.params if isinstance(p.ty, tvm.ir.PrimType)] for f in _kernels(done)]
    assert [[name.split("_")[-1] for name in names] for names in found if names] == [sizes]


def _kernels(mod: tvm.IRModule) -> list[tirx.PrimFunc]:
    return [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
