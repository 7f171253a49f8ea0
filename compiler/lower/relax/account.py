"""The record of the graph nodes that each kernel call computes and the graph values that it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx

from heterocc.compiler.lower.relax.importer import ImportedFunction
from heterocc.compiler.lower.straight import bindings_of, outputs_of, substitute, types_of


@dataclass
class Account:
    """The graph nodes and graph values of each variable of the current `main`; `values_of` as in ImportedFunction."""

    node_of: dict[relax.Var, tuple[str, ...]]
    values_of: dict[relax.Var, tuple[str, ...]]
    nodes_of_call: dict[relax.Var, tuple[str, ...]] = field(default_factory=dict)


def open_account(mod: tvm.IRModule, function: ImportedFunction) -> Account:
    """Attribute every binding to a node. One that a pass added gets the node of the next binding of the importer's."""
    main = mod["main"]
    account = Account({}, {})
    for param in main.params:
        account.values_of[param] = tuple(function.values_of.get(param.name, ()))
    owner: tuple[str, ...] = ()
    for binding in reversed(bindings_of(main)):
        owner = function.node_of.get(binding.var.name, owner)
        account.node_of[binding.var] = owner
        account.values_of[binding.var] = tuple(function.values_of.get(binding.var.name, ()))
    return account


def follow_fusion(before: tvm.IRModule, after: tvm.IRModule, account: Account) -> None:
    """Find for every call after fusion the bindings before fusion that it computes.

    FuseOps renames variables and shares equal functions, so a fused call is followed through its function's body: each
    inner call is looked up among the calls before fusion by callee and arguments.
    """
    index: dict[tuple[Any, ...], list[relax.Var]] = {}
    for binding in bindings_of(before["main"]):
        index.setdefault(_key(binding.value, {}), []).append(binding.var)
    old_params = before["main"].params
    old_of: dict[relax.Var, relax.Var] = dict(zip(after["main"].params, old_params, strict=True))
    fields: dict[relax.Var, list[relax.Var]] = {}

    def resolve(value: relax.Expr, mapping: Mapping[relax.Var, relax.Expr]) -> relax.Var | None:
        candidates = index.get(_key(value, mapping), [])
        if not candidates:
            return None
        return candidates.pop(0) if len(candidates) > 1 else candidates[0]

    def attribute(binding: relax.VarBinding) -> list[relax.Var]:
        """The bindings before fusion that `binding` computes; also records the old variable of its result."""
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in fields:
            _note(old_of, binding.var, fields[value.tuple_value][value.index])
            return []
        callee = after.functions.get(value.op) if isinstance(value, relax.Call) else None
        if not isinstance(callee, relax.Function):
            _note(old_of, binding.var, resolve(value, old_of))
            return [old_of.get(binding.var)]
        inner = {p: substitute(a, old_of) for p, a in zip(callee.params, value.args, strict=True)}
        found = []
        for step in bindings_of(callee):
            if isinstance(step.value, relax.Var):
                _note(inner, step.var, inner.get(step.value))
                continue
            found.append(resolve(step.value, inner))
            _note(inner, step.var, found[-1])
        results = [inner.get(o) for o in outputs_of(callee)]
        if len(results) == 1:
            _note(old_of, binding.var, results[0])
        else:
            fields[binding.var] = results
        return found

    for binding in bindings_of(after["main"]):
        nodes = dict.fromkeys(n for v in attribute(binding) if v is not None for n in account.node_of[v])
        account.nodes_of_call[binding.var] = tuple(nodes)
        account.values_of[binding.var] = account.values_of.get(old_of.get(binding.var), ())
    for new, old in zip(after["main"].params, old_params, strict=True):
        account.values_of[new] = account.values_of.get(old, ())


def _note(mapping: dict[relax.Var, relax.Expr], var: relax.Var, old: relax.Var | None) -> None:
    if old is not None:
        mapping[var] = old


def _key(value: relax.Expr, mapping: Mapping[relax.Var, relax.Expr]) -> tuple[Any, ...]:
    """A key that is equal for equal expressions over equal variables."""
    if isinstance(value, relax.Var):
        known = mapping.get(value, value)  # fusion also turns constants into parameters
        if isinstance(known, relax.Var) and isinstance(known.ty, tvm.ir.PrimType):
            return ("size", known.name)  # each function has variables of its own for sizes
        return ("var", known) if isinstance(known, relax.Var) else _key(known, {})
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
        return ("call", op, *map(_form, types_of(value.ty)), *(_key(a, mapping) for a in value.args))
    return ("text", str(value))


def _form(ty: Any) -> tuple[Any, ...]:
    """A tensor's type without names of sizes: fusion shares a function that differs in these alone."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        return (str(ty),)
    return (str(ty.dtype), *(str(size) if isinstance(size, tirx.IntImm) else None for size in ty.shape.values))


def carry_over(fused: tvm.IRModule, flat: tvm.IRModule, account: Account) -> None:
    """Copy the account to the variables of the module after FuseTIR, which keeps the order of bindings."""
    old, new = bindings_of(fused["main"]), bindings_of(flat["main"])
    old_by_name = {b.var.name: b.var for b in old}
    for a, b in zip(fused["main"].params, flat["main"].params, strict=True):
        account.values_of[b] = account.values_of.get(a, ())
    for binding in new:
        source = old_by_name.get(binding.var.name)
        account.nodes_of_call[binding.var] = account.nodes_of_call.get(source, ())
        account.values_of[binding.var] = account.values_of.get(source, ())


def values_written(main: relax.Function, account: Account) -> dict[relax.Var, tuple[str, ...]]:
    """The graph values that each call writes, one per tensor; empty if one of the tensors is not a graph value."""
    names: dict[relax.Var, dict[int, str]] = {}
    for binding in bindings_of(main):
        values = account.values_of.get(binding.var, ())
        if isinstance(binding.value, relax.TupleGetItem) and values:
            names.setdefault(binding.value.tuple_value, {})[int(binding.value.index)] = values[0]
        elif values:
            names.setdefault(binding.var, {})[0] = values[0]
    found = {}
    for binding in bindings_of(main):
        count = len(types_of(binding.var.ty))
        held = names.get(binding.var, {})
        found[binding.var] = tuple(held[i] for i in range(count)) if len(held) == count else ()
    return found
