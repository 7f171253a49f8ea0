"""Fault injection: a deliberately wrong kernel for tests of the check, `verify` and the bisection.

If HETEROCC_TEST_WRONG_KERNEL is the name of a node, in the graph or in the model, a kernel is inserted after the one
that computes this node. It adds 1 + |x| / 2 to every floating-point element x that the node writes, adds 1 to an
integer, and inverts a boolean. The error is relative as well as absolute: a relative tolerance would hide a constant
one behind activations in the thousands. Without the variable this module has no effect.
"""

from __future__ import annotations

import dataclasses

from tvm import relax, te, tirx

from heterocc.compiler.lower.backend import KernelInfo, PartitionJob
from heterocc.compiler.lower.relax.kernels import SYMBOL_LENGTH, KernelModule
from heterocc.compiler.lower.straight import bindings_of, is_kernel_call, outputs_of, write_main
from heterocc.runtime.fault_variables import WRONG_KERNEL, honour


def plant_fault(module: KernelModule, job: PartitionJob) -> KernelModule:
    """The module with a wrong kernel for the named node, or `module` unchanged if the node is not in it."""
    wanted = honour(WRONG_KERNEL)
    if wanted is None:
        return module
    nodes = {n.name for n in job.model.graph.nodes if wanted == n.name or wanted in n.original}
    for index in reversed(range(len(module.kernels))):
        if nodes & set(module.kernels[index].nodes):
            return _spoil(module, index)
    return module


def _spoil(module: KernelModule, index: int) -> KernelModule:
    """Insert a faulty kernel after the call at `index`; the graph values that the call wrote become its outputs."""
    main = module.mod["main"]
    calls = [i for i, b in enumerate(bindings_of(main)) if is_kernel_call(b.value)]
    bindings = [(b.var, b.value, b.var.name) for b in bindings_of(main)]
    place = calls[index]
    if isinstance(bindings[place][0].ty, relax.TupleType):
        place = next(i for i, (_, v, _) in enumerate(bindings) if _reads_field(v, bindings[place][0]))
    var, value, name = bindings[place]
    right = relax.Var(f"{name}_right", var.ty)
    old = module.kernels[index]
    source = te.placeholder(_extents(var.ty), str(var.ty.dtype.dtype), "right")
    wrong = te.compute(source.shape, lambda *i: _wrong(source(*i)), "wrong")
    symbol = f"wrong_{old.symbol}"[:SYMBOL_LENGTH]
    builder = relax.BlockBuilder(module.mod)
    kernel = te.create_prim_func([source, wrong]).with_attr("tirx.noalias", True).with_attr("global_symbol", symbol)
    gvar = builder.add_func(kernel, symbol)
    bindings[place : place + 1] = [(right, value, right.name), (var, relax.call_tir(gvar, [right], var.ty), name)]
    mod = write_main(builder.get(), main.params, bindings, outputs_of(main))
    # The wrong kernel follows the call, or, if the call writes several values, the binding that reads the first.
    after = sum(is_kernel_call(v) for _, v, _ in bindings[: place + 1])
    kernels = list(module.kernels)
    kernels[index] = dataclasses.replace(old, outputs=())
    kernels.insert(after, KernelInfo(symbol, old.nodes, old.outputs))
    return dataclasses.replace(module, mod=mod, kernels=tuple(kernels))


def _extents(ty: relax.TensorType) -> tuple[int | tirx.Var, ...]:
    """The dimensions of a kernel's tensor: those that only the run knows are variables of its own."""
    return tuple(
        int(dim) if isinstance(dim, tirx.IntImm) else tirx.Var(f"extent_{axis}", "int64")
        for axis, dim in enumerate(ty.shape.values)
    )


def _wrong(right: tirx.Expr) -> tirx.Expr:
    dtype = str(right.ty.dtype)
    if dtype == "bool":
        return tirx.Not(right)
    if dtype.startswith("float"):
        return right + tirx.const(1, dtype) + tirx.abs(right) * tirx.const(0.5, dtype)
    return right + tirx.const(1, dtype)


def _reads_field(value: relax.Expr, source: relax.Expr) -> bool:
    return isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(source)
