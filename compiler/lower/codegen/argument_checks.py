"""Checks of a kernel's arguments, of which TVM writes dozens: as one, and without those that cannot fail."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from heterocc.artifacts.errors import InputValueError

_DISAGREE = f"{InputValueError.MARK}the sizes of a kernel's arguments do not agree"


def with_few_checks(mod: tvm.IRModule) -> tvm.IRModule:
    """The lowered kernels with one check each, that dimensions known only at run time are what the sizes say.

    The entry calls kernels with tensors of the types, ranks and fixed dimensions that they have, in memory without
    gaps. Checks of these, with a text for each, would be half of the code and a third of LLVM's time. What an operator
    demands is still checked.
    """
    return tvm.IRModule({gvar: _with_few_checks(f) for gvar, f in mod.functions_items()}, attrs=mod.attrs)


def _with_few_checks(function: tirx.PrimFunc) -> tirx.PrimFunc:
    name = str(function.attrs["global_symbol"]).removeprefix("__tvm_ffi_")
    every: list[tirx.AssertStmt] = []
    tvm_ffi.structural_walk(function.body, [(tirx.AssertStmt, every.append)], order="pre")
    arguments = [check for check in every if _is_of_arguments(check, name)]
    sizes = [check for check in arguments if _is_of_size(check)]

    def replaced(check: tirx.AssertStmt) -> tirx.Stmt:
        if sizes and check.same_as(sizes[-1]):
            condition = tirx.all(*(size.condition for size in sizes))
            return tirx.AssertStmt(condition, ir.StringImm("ValueError"), [ir.StringImm(_DISAGREE)])
        return tirx.Evaluate(0) if any(check.same_as(known) for known in arguments) else check

    body = tvm_ffi.structural_map(function.body, [(tirx.AssertStmt, replaced)], order="pre")
    return function.with_body(body)


def _is_of_arguments(check: tirx.AssertStmt, name: str) -> bool:
    """Whether TVM made a check: its text has the kernel's signature."""
    return any(str(part.value).startswith(f"{name}(") for part in check.message_parts)


def _is_of_size(check: tirx.AssertStmt) -> bool:
    """Whether a check is of a dimension that is known only at run time."""
    named = any(".shape[" in str(part.value) for part in check.message_parts[:2])  # the dimension, after what is wrong
    return named and not any(isinstance(side, tirx.IntImm) for side in (check.condition.a, check.condition.b))
