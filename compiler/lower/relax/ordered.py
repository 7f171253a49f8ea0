"""The sizes that kernels take beside tensors, in the order in which they use them.

TVM collects the sizes that a fused kernel needs in a set, whose order is that of places in memory: a model's kernels
had other parameters in each process, and those that differ by the order alone were one or several.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax, tirx

from heterocc.compiler.lower.straight import (
    arguments_of,
    bindings_of,
    is_kernel_call,
    outputs_of,
    with_kernel,
    write_main,
)


def sizes_in_order(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with each kernel's sizes in the order in which it uses them; kernels that are then equal are one."""
    main = mod["main"]
    orders = {gvar: _order(f) for gvar, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)}
    if all(list(order) == sorted(order) for order in orders.values()):
        return mod
    builder = relax.BlockBuilder()
    ordered = {gvar: builder.add_func(_in_order(mod[gvar], order), gvar.name_hint) for gvar, order in orders.items()}

    def changed(value: relax.Expr) -> relax.Expr:
        if not is_kernel_call(value):
            return value
        kernel = value.args[0]
        return with_kernel(value, ordered[kernel], _permuted(arguments_of(value), orders[kernel]))

    bindings = [(b.var, changed(b.value), b.var.name) for b in bindings_of(main)]
    return write_main(builder.get(), main.params, bindings, outputs_of(main))


def _order(function: tirx.PrimFunc) -> list[int]:
    """The places of the parameters that are sizes, in the order in which the kernel uses these."""
    places = {param: n for n, param in enumerate(function.params) if isinstance(param.ty, tvm.ir.PrimType)}
    if len(places) < 2:
        return list(places.values())
    used: dict[tirx.Var, None] = {}
    for param in function.params:
        for dim in getattr(param, "shape", ()):
            used.update(dict.fromkeys(tirx.analysis.undefined_vars(dim)))
    if not used.keys() >= places.keys():
        tvm_ffi.structural_walk(function.body, [(tvm.ir.Var, used.setdefault)], order="pre")
    return [places[v] for v in used if v in places] + [n for v, n in places.items() if v not in used]


def _in_order(function: tirx.PrimFunc, order: Sequence[int]) -> tirx.PrimFunc:
    if list(order) == sorted(order):
        return function
    params = _permuted(function.params, order)
    return tirx.PrimFunc(params, function.body, function.ret_type, function.attrs, function.span)


def _permuted(values: Sequence[relax.Expr], order: Sequence[int]) -> list[relax.Expr]:
    """Values with those at the places `order` in this order, and the others where they are."""
    moved = list(values)
    for place, source in zip(sorted(order), order, strict=True):
        moved[place] = values[source]
    return moved
