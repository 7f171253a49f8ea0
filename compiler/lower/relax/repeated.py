"""Computations that a function has several times are made once.

Layers of a language model compute the same masks, positions and rotations from the same inputs; converters of operators
such as GroupQueryAttention write them for every node.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, relax

from heterocc.compiler.lower.straight import arguments_of, bindings_of, outputs_of, substitute, vars_of, write_main

_CODES = frozenset({"int8", "uint8"})


def without_repeated(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with calls of the same operator or kernel on the same values replaced by the first of them.

    Other names of a value are replaced by its own.
    A dequantisation of data stays beside each of its readers, which it becomes a part of. Outputs keep their own
    values. A call that reads no value may draw random numbers, and stays.
    """
    main = mod["main"]
    outputs = outputs_of(main)
    returned = {v for output in outputs for v in vars_of(output)}
    first: dict[tuple[object, ...], list[tuple[relax.Var, relax.Expr]]] = {}
    replace: dict[relax.Var, relax.Expr] = {}
    kept: list[tuple[relax.Var, relax.Expr, str]] = []
    for binding in bindings_of(main):
        value = substitute(binding.value, replace)
        if isinstance(value, relax.Var) and binding.var not in returned:
            replace[binding.var] = value  # another name of a value, through which TVM does not fuse
            continue
        plain = _untyped(value)
        if plain is not None:
            key = (tvm_ffi.structural_hash(plain, map_free_vars=True), *vars_of(plain))
            alike = first.setdefault(key, [])
            same = next((var for var, known in alike if _is_same(var, known, binding.var, plain)), None)
            if same is not None and binding.var not in returned:
                replace[binding.var] = same
                continue
            if same is None:
                alike.append((binding.var, plain))
        kept.append((binding.var, value, binding.var.name))
    return write_main(mod, list(main.params), kept, outputs) if replace else mod


def _untyped(value: relax.Expr) -> relax.Expr | None:
    """An expression without the types that it may have or lack, to compare; None if it is not to be replaced."""
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(value.tuple_value, value.index)
    if not isinstance(value, relax.Call) or not vars_of(value) or _dequantises(value):
        return None
    return relax.Call(value.op, value.args, value.attrs, value.ty_args)


def _is_same(one: relax.Var, known: relax.Expr, other: relax.Var, value: relax.Expr) -> bool:
    """Whether two expressions of the same variables are equal."""
    return bool(tvm_ffi.structural_equal(known, value) and tvm_ffi.structural_equal(one.ty, other.ty))


def _dequantises(call: relax.Call) -> bool:
    """Whether a call makes other numbers of 8-bit ones."""
    given = [a for a in _tensors(call) if isinstance(a.ty, relax.TensorType) and a.ty.dtype is not None]
    types = {str(a.ty.dtype.dtype) for a in given}
    return bool(types & _CODES)


def _tensors(call: relax.Call) -> list[relax.Expr]:
    if isinstance(call.op, ir.Op) and call.op.name == "relax.call_tir":
        return arguments_of(call)
    return [f for a in call.args for f in (a.fields if isinstance(a, relax.Tuple) else [a])]
