"""Kernels that only reshape: views, and reshapes that are not fused with what turns their argument."""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.relax.fusion import not_fused
from heterocc.compiler.lower.relax.importer import dtype_name
from heterocc.compiler.lower.straight import arguments_of, bindings_of, is_kernel_call, outputs_of
from heterocc.compiler.lower.variables import Extent, in_one_form, same
from heterocc.compiler.lower.written import BROADCAST, RESHAPES, WRITTEN, pattern_of


def joins_after_turns_apart(mod: tvm.IRModule, *, outputs: bool = False) -> tvm.IRModule:
    """The module with reshapes that join the last dimension, of any size, of a turned tensor marked as not fused.

    A kernel that turns a tensor writes it in vectors, and the reshape is a view. One kernel of both would divide the
    place of each element by sizes of the run: it took ten times as long. An output is a view only if the tensor can be
    written there, which `outputs` says.
    """
    main = mod["main"]
    returned = set(outputs_of(main))
    turned: set[relax.Var] = set()
    joined: set[relax.Var] = set()
    for binding in bindings_of(main):
        value = binding.value
        if not is_kernel_call(value):
            continue
        function = mod[value.args[0]]
        if any(argument in turned and argument not in returned for argument in arguments_of(value)):
            if _is_by_element(function):
                turned.add(binding.var)
            elif (outputs or binding.var not in returned) and _joins_last(value) and is_view(function, value):
                joined.add(binding.var)
        elif _turns_last(function):
            turned.add(binding.var)
    return not_fused(mod, joined)


def _is_by_element(function: tirx.PrimFunc) -> bool:
    return pattern_of(function) <= BROADCAST


def _turns_last(function: tirx.PrimFunc) -> bool:
    """Whether a kernel writes its argument in another order, with another last dimension."""
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(function.body, [(tirx.BufferStore, stores.append)], order="pre")
    if len(stores) != 1 or not isinstance(stores[0].value, TensorLoad):
        return False
    to, read = list(stores[0].indices), list(stores[0].value.indices)
    if len(to) != len(read) or not to or not all(any(i.same_as(j) for j in to) for i in read):
        return False
    return not to[-1].same_as(read[-1])


def _joins_last(call: relax.Call) -> bool:
    """Whether sizes are dynamic, and the result has another last dimension than the argument."""
    argument = only_tensor(call)
    if argument is None or not isinstance(call.ty, relax.TensorType):
        return False
    before, after = (list(ty.shape.values) for ty in (argument.ty, call.ty))
    fixed = all(isinstance(dim, tirx.IntImm) for dim in (*before, *after))
    return not fixed and bool(before) and bool(after) and not same([before[-1]], [after[-1]])


def is_view(function: tirx.PrimFunc, call: relax.Call) -> bool:
    """Whether a kernel only reshapes its argument, so that it need not run."""
    argument = only_tensor(call)
    if not isinstance(argument, relax.Var) or not isinstance(call.ty, relax.TensorType):
        return False
    if function.attrs and WRITTEN in function.attrs:
        return False
    if function.attrs and RESHAPES in function.attrs:
        return True
    # TVM also recognises a copy of the first part of a tensor as a reshape, so compare the sizes.
    if dtype_name(argument.ty) != dtype_name(call.ty) or not same([_elements(argument.ty)], [_elements(call.ty)]):
        return False
    try:
        return bool(relax.analysis.has_reshape_pattern(in_one_form(_in_order(function))))
    except tvm.error.InternalError:  # its analysis of indices does not know all products of sums
        return False


def _in_order(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel whose sizes are called so that their names are in the order of the dimensions that it reads.

    TVM only finds that the number of elements of several dimensions is a product of sizes in this order, and
    `in_one_form` orders them by their names.
    """
    given = function.params[0].ty.shape
    found = list(dict.fromkeys(v for dim in given for v in tirx.analysis.undefined_vars(dim)))
    names = {var: tirx.Var(f"s{number:02}", var.ty.dtype) for number, var in enumerate(found)}
    return tvm_ffi.structural_map(function, [(tirx.Var, lambda var: names.get(var, var))], order="post")


def _elements(ty: relax.TensorType) -> Extent:
    count = math.prod(int(d) if isinstance(d, tirx.IntImm) else d for d in ty.shape.values)
    return count if isinstance(count, int) else in_one_form(count)


def only_tensor(call: relax.Call) -> relax.Var | None:
    """The tensor argument of a kernel call with exactly one, beside which there may be sizes, else None."""
    first, *others = arguments_of(call) or [None]
    sizes = all(not isinstance(a.ty, relax.TensorType) for a in others)
    return first if sizes and len(call.args) == 2 and isinstance(first, relax.Var) and _is_tensor(first) else None


def _is_tensor(value: relax.Expr) -> bool:
    return isinstance(value.ty, relax.TensorType) and isinstance(value.ty.shape, relax.ShapeExpr)
