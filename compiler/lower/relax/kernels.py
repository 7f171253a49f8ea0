"""Conversion of a Relax function to kernel calls, with a record of the graph nodes that each call computes."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.lower.arranged import Arranged
from heterocc.compiler.lower.backend import KernelInfo
from heterocc.compiler.lower.relax.account import Account, carry_over, follow_fusion, open_account, values_written
from heterocc.compiler.lower.relax.fusion import (
    expansions_after_products_apart,
    padding_after_sums_apart,
    sizes_in_shapes,
    without_blowup,
)
from heterocc.compiler.lower.relax.importer import ImportedFunction
from heterocc.compiler.lower.relax.ordered import sizes_in_order
from heterocc.compiler.lower.relax.views import is_view, joins_after_turns_apart, only_tensor
from heterocc.compiler.lower.straight import (
    arguments_of,
    array_of,
    bindings_of,
    is_kernel_call,
    is_static,
    outputs_of,
    substitute,
    vars_of,
    with_kernel,
    write_main,
)
from heterocc.compiler.lower.tvm_fixes.half_functions import through_float32
from heterocc.compiler.lower.tvm_fixes.legalise import legalised
from heterocc.compiler.lower.tvm_fixes.nan_order import numbers_first
from heterocc.compiler.lower.tvm_fixes.reduction_start import start_from_infinity
from heterocc.compiler.lower.variables import size_variable
from heterocc.compiler.lower.written import APPENDS

if TYPE_CHECKING:
    from tvm.ir.transform import Pass
    from tvm.target import Target


SYMBOL_LENGTH = 100
"""The most characters of a kernel symbol."""


@dataclass(frozen=True, slots=True)
class Home:
    """The value, by name, in whose memory another one lies, and its first byte there, which may depend on sizes."""

    whole: str
    start: int | tirx.Expr


@dataclass(frozen=True)
class KernelModule:
    """A module whose `main(*inputs, *parameters)` consists of kernel calls (`call_tir`) and views (`reshape`).

    Each output is written by a separate kernel call. `kernels[i]` describes the i-th call and has a unique symbol.
    Equal kernels are one function, named after the first of them. `arrays` are the parameters' values by name, in
    their order; `arranged` has those that a runtime can make from other arrays. A call whose result is the home of
    others is not run, and has no entry in `kernels`: its arguments are written there. `returns` is as in
    ImportedFunction.
    """

    mod: tvm.IRModule
    inputs: tuple[str, ...]
    arrays: Mapping[str, np.ndarray]
    kernels: tuple[KernelInfo, ...]
    arranged: Mapping[str, Arranged] = field(default_factory=dict)
    homes: Mapping[str, Home] = field(default_factory=dict)
    returns: bool = False


def to_kernels(
    function: ImportedFunction,
    target: Target,
    before: Sequence[Pass] = (),
    apart: Callable[[tvm.IRModule], tvm.IRModule] | None = None,
) -> KernelModule:
    """Legalise for `target`, fuse, and name kernels after graph nodes.

    `before` are passes of the back end that run before TVM's legalisation; `apart` marks kernels in a module that is
    annotated with TVM's patterns, so that they are not fused.
    """
    arrays = dict(function.arrays)
    with target:
        mod = legalised(tvm.transform.Sequential([*before])(function.mod))
        mod = _lift_constants(through_float32(numbers_first(start_from_infinity(mod))), arrays)
        mod = padding_after_sums_apart(without_blowup(relax.transform.AnnotateTIROpPattern()(mod)))
        mod = joins_after_turns_apart(expansions_after_products_apart(mod))
        mod = mod if apart is None else apart(mod)
        account = open_account(mod, function)
        fused = relax.transform.FuseOps()(mod)
        follow_fusion(mod, fused, account)
        flat = sizes_in_order(relax.transform.FuseTIR()(sizes_in_shapes(fused)))
    carry_over(fused, flat, account)
    flat = _own_outputs(flat, account)
    return _named(flat, function, arrays, account)


def _lift_constants(mod: tvm.IRModule, arrays: dict[str, np.ndarray]) -> tvm.IRModule:
    """Turn every constant with more than one element into a parameter; equal constants become one."""
    main = mod["main"]
    added: dict[tuple[str, tuple[int, ...], bytes], relax.Var] = {}  # by the digest of the bytes

    def lifted(expr: relax.Expr) -> relax.Expr:
        if isinstance(expr, tvm.ir.GenericConst):
            if math.prod(expr.value.shape) == 1:
                return expr
            array = array_of(expr)
            key = (str(array.dtype), array.shape, hashlib.sha256(array.reshape(-1).view(np.uint8).data).digest())
            if key not in added:
                added[key] = relax.Var(f"c_{len(added)}", expr.ty)
                arrays[added[key].name] = array
            return added[key]
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([lifted(f) for f in expr.fields])
        if isinstance(expr, relax.Call):
            return relax.Call(expr.op, [lifted(a) for a in expr.args], expr.attrs, expr.ty_args, expr.span)
        return expr

    taken: set[str] = {p.name for p in main.params}
    bindings = [(b.var, lifted(b.value), _fresh(b.var.name, taken)) for b in bindings_of(main)]
    outputs = [lifted(o) for o in outputs_of(main)]
    return write_main(mod, [*main.params, *added.values()], bindings, outputs)


def _own_outputs(mod: tvm.IRModule, account: Account) -> tvm.IRModule:
    """Make a separate kernel call write every output: copy inputs, weights and values that are output twice."""
    main = mod["main"]
    written: dict[relax.Var, relax.Expr] = {b.var: b.value for b in bindings_of(main)}
    builder = relax.BlockBuilder(mod)
    bindings: list[tuple[relax.Var, relax.Expr, str]] = []
    taken = {p.name for p in main.params}
    for binding in bindings_of(main):
        bindings.append((binding.var, binding.value, _fresh(binding.var.name, taken)))
    outputs: list[relax.Var] = []
    claimed: set[relax.Var] = set()
    for index, output in enumerate(outputs_of(main)):
        source = output
        while isinstance(source, relax.Var) and isinstance(written.get(source), relax.Var):
            source = written[source]
        direct = isinstance(written.get(source), relax.Call | relax.TupleGetItem) and source not in claimed
        if direct:
            claimed.add(source)
            outputs.append(source)
            continue
        gvar = builder.add_func(_copying(output.ty), "copy")
        var = relax.Var(f"copy_{index}", output.ty)
        bindings.append((var, relax.call_tir(gvar, [source], output.ty), _fresh(var.name, taken)))
        account.nodes_of_call[var] = ()
        account.values_of[var] = account.values_of.get(output, ())
        outputs.append(var)
    return _rewrite(builder.get(), main.params, bindings, outputs, account)


def _copying(ty: relax.TensorType) -> tirx.PrimFunc:
    """A kernel that copies a tensor, with variables of its own for dimensions that are expressions of others."""
    own = [
        dim if isinstance(dim, tirx.IntImm | tirx.Var) else size_variable(str(n), "int64", empty=True)
        for n, dim in enumerate(ty.shape.values)
    ]
    source = te.placeholder(own, str(ty.dtype.dtype), "source")
    return te.create_prim_func([source, topi.identity(source)]).with_attr("tirx.noalias", True)


def _rewrite(
    mod: tvm.IRModule,
    params: Sequence[relax.Var],
    bindings: list[tuple[relax.Var, relax.Expr, str]],
    outputs: list[relax.Var],
    account: Account,
) -> tvm.IRModule:
    """Write `main` without aliases and unused calls, and copy the account to the new variables."""
    alias: dict[relax.Var, relax.Var] = {}
    kept = []
    for var, value, name in bindings:
        value = substitute(value, alias)
        if isinstance(value, relax.Var):
            alias[var] = value
        else:
            kept.append((var, value, name))
    outputs = [substitute(o, alias) for o in outputs]
    live = {v for o in outputs for v in vars_of(o)}
    for var, value, _ in reversed(kept):
        if var in live:
            live.update(vars_of(value))
    kept = [k for k in kept if k[0] in live]
    done = write_main(mod, params, kept, outputs)
    for (var, _, _), binding in zip(kept, bindings_of(done["main"]), strict=True):
        account.nodes_of_call[binding.var] = account.nodes_of_call.get(var, ())
        account.values_of[binding.var] = account.values_of.get(var, ())
    return done


def _named(
    mod: tvm.IRModule, function: ImportedFunction, arrays: dict[str, np.ndarray], account: Account
) -> KernelModule:
    """Name kernels after their nodes, drop unused parameters, and write the table of calls.

    A kernel that only reshapes is a view. One whose result is an output copies a view: reading places computed from
    sizes of the run takes forty times as long.
    """
    main = mod["main"]
    taken = {"main"}
    names = {v.name for v in (*main.params, *(b.var for b in bindings_of(main)))}
    renamed: dict[str, relax.GlobalVar] = {}
    builder = relax.BlockBuilder()
    returned = set(outputs_of(main))
    written = values_written(main, account)
    kernels: list[KernelInfo] = []
    bindings: list[tuple[relax.Var, relax.Expr, str]] = []
    for binding in bindings_of(main):
        call = binding.value
        if isinstance(call, relax.TupleGetItem):
            bindings.append((binding.var, call, binding.var.name))
            continue
        reshapes = is_kernel_call(call) and is_view(mod[call.args[0]], call)
        if reshapes and binding.var not in returned:
            view = relax.op.reshape(only_tensor(call), call.ty.shape)
            bindings.append((binding.var, view, binding.var.name))
            continue
        nodes = account.nodes_of_call.get(binding.var, ())
        if not is_kernel_call(call):
            raise LoweringError(
                f"TVM cannot generate a kernel for {getattr(call.op, 'name', call.op)}",
                where=f"node '{nodes[-1]}'" if nodes else None,
            )
        old = call.args[0]
        symbol = _fresh(_prefix(mod[old]) + _symbol(nodes, written[binding.var]), taken)
        copied = reshapes and not is_static(call)
        if copied:
            view = relax.Var(_fresh(f"{binding.var.name}_view", names), binding.var.ty)
            bindings.append((view, relax.op.reshape(only_tensor(call), binding.var.ty.shape), view.name))
            call = relax.call_tir(old, [view], binding.var.ty)
        if old.name_hint not in renamed:
            kernel = _copying(binding.var.ty) if copied else mod[old]
            kernel = kernel.without_attr("global_symbol").with_attr("global_symbol", symbol)
            renamed[old.name_hint] = builder.add_func(kernel, symbol)
        gvar = renamed[old.name_hint]
        value = with_kernel(call, gvar)
        bindings.append((binding.var, value, binding.var.name))
        kernels.append(KernelInfo(symbol, nodes, written[binding.var]))
    used = {v for _, value, _ in bindings for v in vars_of(value)}
    params = [p for p in main.params if p.name not in arrays or p in used]
    done = write_main(builder.get(), params, bindings, outputs_of(main))
    left = {p.name: arrays[p.name] for p in params if p.name in arrays}
    return KernelModule(done, function.inputs, left, tuple(kernels), returns=function.returns)


def kernel_calls(module: KernelModule) -> list[tuple[relax.VarBinding, str, list[relax.Expr]]]:
    """The binding, symbol and tensor arguments of each kernel call, in order."""
    return [
        (binding, binding.value.args[0].name_hint, arguments_of(binding.value))
        for binding in bindings_of(module.mod["main"])
        if is_kernel_call(binding.value)
    ]


def calls_run(module: KernelModule) -> list[tuple[str, KernelInfo]]:
    """The symbol and the record of each kernel call that is run, in order; equal kernels have one symbol."""
    wholes = {home.whole for home in module.homes.values()}
    symbols = [symbol for binding, symbol, _ in kernel_calls(module) if binding.var.name not in wholes]
    return list(zip(symbols, module.kernels, strict=True))


def always_among(module: KernelModule, values: Collection[relax.Var]) -> dict[str, frozenset[int]]:
    """For each kernel the numbers of the arguments that are one of `values` in every call."""
    found: dict[str, frozenset[int]] = {}
    for _, symbol, arguments in kernel_calls(module):
        here = frozenset(i for i, a in enumerate(arguments) if a in values)
        found[symbol] = found.get(symbol, here) & here
    return found


def _prefix(function: tirx.PrimFunc) -> str:
    """The start of a symbol by which the runtime finds kernels that append rows: `append2.` for those of axis 2.

    No other symbol has a full stop.
    """
    axis = (function.attrs or {}).get(APPENDS)
    return "" if axis is None else f"append{int(axis)}."


def _symbol(nodes: tuple[str, ...], values: tuple[str, ...]) -> str:
    """A C identifier made of the first node's name and the number of further nodes."""
    if not nodes:
        text = f"copy_{values[0]}" if values else "copy"
    else:
        text = nodes[0] if len(nodes) == 1 else f"{nodes[0][: SYMBOL_LENGTH - 16]}_and_{len(nodes) - 1}_more"
    text = re.sub(r"[^0-9A-Za-z_]", "_", text)[: SYMBOL_LENGTH - 8]
    return text if text[:1].isalpha() else f"k{text}"


def _fresh(name: str, taken: set[str]) -> str:
    candidate, count = name, 1
    while candidate in taken:
        candidate, count = f"{name}_{count}", count + 1
    taken.add(candidate)
    return candidate
