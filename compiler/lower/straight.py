"""Straight-line Relax functions: reading, substituting and writing them without TVM's visitors.

Lowering handles one function with one dataflow block, static shapes and no control flow.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tvm
from tvm import relax

from heterocc.runtime.execute.memory import host_tensor
from heterocc.runtime.plan.slots import ALIGNMENT

_SHARED = 1 << 16
"""Bytes from which a constant shares the memory of an array."""


def bindings_of(function: relax.Function) -> list[relax.VarBinding]:
    """The bindings of a function in order, without that of the result tuple."""
    result = function.body.body
    return [b for b in _all_bindings(function) if not (isinstance(b.value, relax.Tuple) and b.var.same_as(result))]


def _all_bindings(function: relax.Function) -> list[relax.VarBinding]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def outputs_of(function: relax.Function) -> list[relax.Var]:
    """The expressions that a function returns: the fields of its result tuple, whether bound to a variable or not."""
    body = function.body.body
    bound = {b.var: b.value for b in _all_bindings(function)}
    seen = body
    while isinstance(seen, relax.Var) and seen in bound and not isinstance(bound[seen], relax.Call):
        seen = bound[seen]
    if isinstance(seen, relax.Tuple):
        return list(seen.fields)
    return [seen]


def vars_of(expr: relax.Expr) -> list[relax.Var]:
    """The variables that an expression reads, in order, with repetitions."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Call):
        return [v for arg in expr.args for v in vars_of(arg)]
    if isinstance(expr, relax.Tuple):
        return [v for field in expr.fields for v in vars_of(field)]
    if isinstance(expr, relax.TupleGetItem):
        return vars_of(expr.tuple_value)
    return []


def is_kernel_call(value: relax.Expr) -> bool:
    """Whether an expression calls a kernel of the module."""
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.call_tir"


def arguments_of(call: relax.Call) -> list[relax.Expr]:
    """The tensors that a kernel call reads."""
    given = call.args[1]
    return list(given.fields) if isinstance(given, relax.Tuple) else [given]


def is_static(value: relax.Expr) -> bool:
    """Whether every dimension of a tensor is a number."""
    shape = value.ty.shape
    return isinstance(shape, relax.ShapeExpr) and all(isinstance(d, tvm.tirx.IntImm) for d in shape.values)


def types_of(ty: relax.TensorType | relax.TupleType) -> list[relax.TensorType]:
    """The types of the tensors that make up a value, as what a kernel call writes: one, or those of a tuple."""
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]


def with_kernel(call: relax.Call, kernel: relax.GlobalVar, arguments: Sequence[relax.Expr] | None = None) -> relax.Call:
    """A kernel call with another kernel and, where they are given, other tensors."""
    rest = call.args[1:] if arguments is None else [relax.Tuple(arguments), *call.args[2:]]
    return relax.Call(call.op, [kernel, *rest], call.attrs, call.ty_args)


def substitute(expr: relax.Expr, replace: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """`expr` with variables replaced; unchanged subexpressions are shared."""
    if isinstance(expr, relax.Var):
        return replace.get(expr, expr)
    if not any(v in replace for v in vars_of(expr)):
        return expr
    if isinstance(expr, relax.Call):
        args = [substitute(a, replace) for a in expr.args]
        return relax.Call(expr.op, args, expr.attrs, expr.ty_args, expr.span)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([substitute(f, replace) for f in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substitute(expr.tuple_value, replace), expr.index)
    return expr


def write_main(
    mod: tvm.IRModule,
    params: Sequence[relax.Var],
    bindings: Iterable[tuple[relax.Var, relax.Expr, str]],
    outputs: Sequence[relax.Var],
) -> tvm.IRModule:
    """`mod` with a `main` of one dataflow block, returning a tuple of `outputs`.

    Bindings are (old variable, value, new name); values and outputs refer to old variables or to `params`. Names must
    be unique among themselves and the parameters.
    """
    builder = relax.BlockBuilder()
    replace: dict[relax.Var, relax.Var] = {}
    with builder.function("main", params=list(params)):
        with builder.dataflow():
            for var, value, name in bindings:
                replace[var] = builder.emit(substitute(value, replace), name)
                if replace[var].name != name:
                    raise ValueError(f"two variables have the name '{name}'")
            result = builder.emit_output(relax.Tuple([substitute(o, replace) for o in outputs]))
        builder.emit_func_output(result)
    functions = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
    functions[relax.GlobalVar("main")] = builder.finalize()["main"]
    return tvm.IRModule(functions)


def constant(array: np.ndarray) -> relax.Expr:
    """A constant with exactly the array's dtype; `relax.const` of a number would make 64-bit numbers 32-bit.

    It may share the array's memory, which must not be written later.
    """
    # Not ascontiguousarray, which turns scalars into vectors of one element.
    ordered = np.array(array, order="C", copy=None)
    if ordered.nbytes >= _SHARED and ordered.dtype.kind in "iuf" and ordered.ctypes.data % ALIGNMENT == 0:
        return relax.const(host_tensor(ordered if ordered.flags.writeable else _unprotected(ordered)))
    return relax.const(tvm.runtime.tensor(ordered))


def _unprotected(array: np.ndarray) -> np.ndarray:
    """The same memory, such as that of a mapped file, as an array that numpy exports; it keeps the other one alive."""
    memory = (ctypes.c_ubyte * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array  # type: ignore[attr-defined]
    return np.asarray(memory).view(array.dtype).reshape(array.shape)


def array_of(found: relax.Expr) -> np.ndarray:
    """The array of a constant, in its memory if numpy has the dtype: a language model's table has hundreds of MB."""
    try:
        array = np.from_dlpack(found.value)
        array.flags.writeable = False  # it may be a mapped file's
        return array
    except (BufferError, RuntimeError):  # bfloat16 and narrower
        return np.asarray(found.value.numpy())
