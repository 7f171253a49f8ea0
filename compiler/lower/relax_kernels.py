"""Turns a Relax function into calls of kernels, and keeps the account of which graph nodes each call computes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, topi

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.lower.base import KernelInfo
from heterocc.compiler.lower.reduction_start import start_from_infinity
from heterocc.compiler.lower.relax_importer import ImportedFunction, dtype_name, static_shape
from heterocc.compiler.lower.relax_straight import bindings_of, outputs_of, substitute, vars_of, write_main

SYMBOL_LENGTH = 100
"""Longest kernel symbol, in characters."""


@dataclass(frozen=True)
class KernelModule:
    """A module whose `main(*inputs, *parameters)` is kernel calls (`call_tir`) and views (`reshape`).

    Each output is written by a kernel call of its own. `kernels[i]` describes the i-th call and has a symbol of its
    own; equal kernels are one function, called after the first of them. `arrays` are the parameters' values by name,
    in their order.
    """

    mod: tvm.IRModule
    inputs: tuple[str, ...]
    arrays: Mapping[str, np.ndarray]
    kernels: tuple[KernelInfo, ...]


@dataclass
class _Account:
    """Which node each variable of the current `main` belongs to; `values` as in ImportedFunction."""

    node_of: dict[Any, str]
    values_of: dict[Any, tuple[str, ...]]
    nodes_of_call: dict[Any, tuple[str, ...]] = field(default_factory=dict)


def to_kernels(function: ImportedFunction, target: Any, before: Sequence[Any] = ()) -> KernelModule:
    """Legalise for `target`, fuse, and name kernels after graph nodes.

    `before` are passes of the back end that run before TVM's legalisation (its own legalisations, for instance).
    """
    arrays = dict(function.arrays)
    with target:
        mod = tvm.transform.Sequential([*before, relax.transform.LegalizeOps(enable_warning=False)])(function.mod)
        mod = _lift_constants(start_from_infinity(mod), arrays)
        account = _account(mod, function)
        mod = relax.transform.AnnotateTIROpPattern()(mod)
        fused = relax.transform.FuseOps()(mod)
        _attribute(mod, fused, account)
        flat = relax.transform.FuseTIR()(fused)
    _carry_over(fused, flat, account)
    flat = _own_outputs(flat, account)
    return _named(flat, function, arrays, account)


def _lift_constants(mod: tvm.IRModule, arrays: dict[str, np.ndarray]) -> tvm.IRModule:
    """Make every constant with more than one element a parameter; equal ones become one."""
    main = mod["main"]
    added: dict[tuple[str, tuple[int, ...], bytes], Any] = {}

    def lifted(expr: Any) -> Any:
        if isinstance(expr, tvm.ir.GenericConst):
            array = np.asarray(expr.value.numpy())
            if array.size == 1:
                return expr
            key = (str(array.dtype), array.shape, array.tobytes())
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


def _account(mod: tvm.IRModule, function: ImportedFunction) -> _Account:
    """Attribute every binding: one that a pass added belongs to the next one that the importer made."""
    main = mod["main"]
    account = _Account({}, {})
    for param in main.params:
        account.values_of[param] = tuple(function.values_of.get(param.name, ()))
    owner = ""
    for binding in reversed(bindings_of(main)):
        owner = function.node_of.get(binding.var.name, owner)
        account.node_of[binding.var] = owner
        account.values_of[binding.var] = tuple(function.values_of.get(binding.var.name, ()))
    return account


def _attribute(before: tvm.IRModule, after: tvm.IRModule, account: _Account) -> None:
    """Find for every call after fusion the bindings before it that it computes.

    FuseOps renames variables and shares equal functions, so a fused call is followed through its function's body: each
    inner call is looked up among the calls before fusion by callee and arguments.
    """
    index: dict[tuple[Any, ...], list[Any]] = {}
    for binding in bindings_of(before["main"]):
        index.setdefault(_key(binding.value, {}), []).append(binding.var)
    old_params = before["main"].params
    old_of: dict[Any, Any] = dict(zip(after["main"].params, old_params, strict=True))

    def resolve(value: Any, mapping: Mapping[Any, Any]) -> Any:
        candidates = index.get(_key(value, mapping), [])
        if not candidates:
            return None
        return candidates.pop(0) if len(candidates) > 1 else candidates[0]

    for binding in bindings_of(after["main"]):
        call = binding.value
        callee = after.functions.get(call.op) if isinstance(call, relax.Call) else None
        if isinstance(callee, relax.Function):
            inner = {p: old_of.get(a, a) for p, a in zip(callee.params, call.args, strict=True)}
            found = []
            for step in bindings_of(callee):
                if isinstance(step.value, relax.Var):
                    inner[step.var] = inner.get(step.value)
                    continue
                inner[step.var] = resolve(step.value, inner)
                found.append(inner[step.var])
            old_of[binding.var] = inner.get(outputs_of(callee)[0])
        else:
            old_of[binding.var] = resolve(call, old_of)
            found = [old_of[binding.var]]
        nodes = dict.fromkeys(account.node_of[v] for v in found if v is not None)
        account.nodes_of_call[binding.var] = tuple(n for n in nodes if n)
        account.values_of[binding.var] = account.values_of.get(old_of[binding.var], ())
    for new, old in zip(after["main"].params, old_params, strict=True):
        account.values_of[new] = account.values_of.get(old, ())


def _key(value: Any, mapping: Mapping[Any, Any]) -> tuple[Any, ...]:
    """A key that is equal for equal expressions over equal variables."""
    if isinstance(value, relax.Var):
        return ("var", mapping.get(value, value))
    if isinstance(value, relax.GlobalVar):
        return ("global", value.name_hint)
    if isinstance(value, tvm.ir.GenericConst):
        array = value.value.numpy()
        return ("const", str(array.dtype), array.shape, array.tobytes())
    if isinstance(value, relax.Tuple):
        return ("tuple", *(_key(f, mapping) for f in value.fields))
    if isinstance(value, relax.TupleGetItem):
        return ("get", value.index, _key(value.tuple_value, mapping))
    if isinstance(value, relax.Call):
        op = value.op.name if isinstance(value.op, tvm.ir.Op) else _key(value.op, mapping)
        return ("call", op, str(value.ty), *(_key(a, mapping) for a in value.args))
    return ("text", str(value))


def _carry_over(fused: tvm.IRModule, flat: tvm.IRModule, account: _Account) -> None:
    """FuseTIR keeps the sequence of bindings: copy the account onto its variables."""
    old, new = bindings_of(fused["main"]), bindings_of(flat["main"])
    old_by_name = {b.var.name: b.var for b in old}
    for a, b in zip(fused["main"].params, flat["main"].params, strict=True):
        account.values_of[b] = account.values_of.get(a, ())
    for binding in new:
        source = old_by_name.get(binding.var.name)
        account.nodes_of_call[binding.var] = account.nodes_of_call.get(source, ())
        account.values_of[binding.var] = account.values_of.get(source, ())


def _own_outputs(mod: tvm.IRModule, account: _Account) -> tvm.IRModule:
    """Give every output a kernel call of its own: inputs, weights and values that are output twice are copied."""
    main = mod["main"]
    written: dict[Any, Any] = {b.var: b.value for b in bindings_of(main)}
    builder = relax.BlockBuilder(mod)
    bindings: list[tuple[Any, Any, str]] = []
    taken = {p.name for p in main.params}
    for binding in bindings_of(main):
        bindings.append((binding.var, binding.value, _fresh(binding.var.name, taken)))
    outputs: list[Any] = []
    claimed: set[Any] = set()
    for index, output in enumerate(outputs_of(main)):
        source = output
        while isinstance(source, relax.Var) and isinstance(written.get(source), relax.Var):
            source = written[source]
        direct = isinstance(written.get(source), relax.Call | relax.TupleGetItem) and source not in claimed
        if direct:
            claimed.add(source)
            outputs.append(source)
            continue
        shape = static_shape(output.ty) or ()
        placeholder = te.placeholder(shape, str(output.ty.dtype.dtype), "source")
        copy = te.create_prim_func([placeholder, topi.identity(placeholder)])
        gvar = builder.add_func(copy.with_attr("tirx.noalias", True), "copy")
        var = relax.Var(f"copy_{index}", output.ty)
        bindings.append((var, relax.call_tir(gvar, [source], output.ty), _fresh(var.name, taken)))
        account.nodes_of_call[var] = ()
        account.values_of[var] = account.values_of.get(output, ())
        outputs.append(var)
    return _rewrite(builder.get(), main.params, bindings, outputs, account)


def _rewrite(
    mod: tvm.IRModule,
    params: Sequence[Any],
    bindings: list[tuple[Any, Any, str]],
    outputs: list[Any],
    account: _Account,
) -> tvm.IRModule:
    """Write `main` without plain aliases and unused calls, and carry the account over."""
    alias: dict[Any, Any] = {}
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
    mod: tvm.IRModule, function: ImportedFunction, arrays: dict[str, np.ndarray], account: _Account
) -> KernelModule:
    """Name kernels after their nodes, drop parameters that nobody reads, and write the table of calls."""
    main = mod["main"]
    taken = {"main"}
    renamed: dict[str, Any] = {}
    builder = relax.BlockBuilder()
    returned = set(outputs_of(main))
    kernels: list[KernelInfo] = []
    bindings: list[tuple[Any, Any, str]] = []
    for binding in bindings_of(main):
        call = binding.value
        if isinstance(call, relax.TupleGetItem):
            bindings.append((binding.var, call, binding.var.name))
            continue
        if binding.var not in returned and is_kernel_call(call) and _is_view(mod[call.args[0]], call):
            view = relax.op.reshape(_argument(call), call.ty.shape)
            bindings.append((binding.var, view, binding.var.name))
            continue
        nodes = account.nodes_of_call.get(binding.var, ())
        if not is_kernel_call(call):
            raise LoweringError(
                f"TVM has no kernel for {getattr(call.op, 'name', call.op)}",
                where=f"node '{nodes[-1]}'" if nodes else None,
            )
        old = call.args[0]
        symbol = _fresh(_symbol(nodes, account.values_of.get(binding.var, ())), taken)
        if old.name_hint not in renamed:
            kernel = mod[old].without_attr("global_symbol").with_attr("global_symbol", symbol)
            renamed[old.name_hint] = builder.add_func(kernel, symbol)
        gvar = renamed[old.name_hint]
        value = relax.Call(call.op, [gvar, *call.args[1:]], call.attrs, call.ty_args)
        bindings.append((binding.var, value, binding.var.name))
        kernels.append(KernelInfo(symbol, nodes, account.values_of.get(binding.var, ())))
    used = {v for _, value, _ in bindings for v in vars_of(value)}
    params = [p for p in main.params if p.name not in arrays or p in used]
    done = write_main(builder.get(), params, bindings, outputs_of(main))
    left = {p.name: arrays[p.name] for p in params if p.name in arrays}
    return KernelModule(done, function.inputs, left, tuple(kernels))


def _is_view(function: Any, call: Any) -> bool:
    """Whether a kernel only gives its argument another shape: then it need not run."""
    argument = _argument(call)
    if not isinstance(argument, relax.Var) or not isinstance(call.ty, relax.TensorType):
        return False
    return dtype_name(argument.ty) == dtype_name(call.ty) and bool(relax.analysis.has_reshape_pattern(function))


def _argument(call: Any) -> Any:
    """The only tensor argument of a kernel call, else None."""
    fields = call.args[1].fields if isinstance(call.args[1], relax.Tuple) else [call.args[1]]
    return fields[0] if len(fields) == 1 and len(call.args) == 2 else None


def is_kernel_call(value: Any) -> bool:
    """Whether an expression calls a kernel of the module."""
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == "relax.call_tir"


def _symbol(nodes: tuple[str, ...], values: tuple[str, ...]) -> str:
    """A C identifier: the first node, and how many more."""
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
