"""Modules for batches of separate items, from modules whose kernels are scheduled for one item.

Items lie one after the other in every value that depends on an input. How a kernel computes all items is a rule of the
back end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import relax, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.relax.kernels import KernelModule
from heterocc.compiler.lower.straight import (
    arguments_of,
    bindings_of,
    is_kernel_call,
    outputs_of,
    substitute,
    types_of,
    vars_of,
    write_main,
)

Pattern = tuple[bool, ...]
"""For each argument and result of a call whether it holds items one after the other."""

Rule = Callable[[tirx.PrimFunc, Pattern, int], tirx.PrimFunc | None]
"""The kernel for all items, of a kernel for one, a pattern and the number of results; None if that is not possible.

The kernel for all takes the number of items before its results.
"""


def of_item(
    body: tirx.Stmt,
    replaced: Sequence[tuple[tirx.Var, tirx.Var]],
    item: tirx.Var,
    rows_of: Callable[[tirx.Buffer], tirx.Expr | int | None],
) -> tirx.Stmt:
    """Code of a kernel for one item as that for number `item` of several.

    Variables are replaced by others. `rows_of` gives the rows that an item has of a buffer with all items, None for any
    other buffer.
    """

    def variable(var: tirx.Var) -> tirx.Var:
        return next((new for old, new in replaced if old.same_as(var)), var)

    def placed(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> list[tirx.Expr] | None:
        rows = rows_of(buffer)
        return None if rows is None else [indices[0] + item * rows, *indices[1:]]

    def load(node: TensorLoad) -> TensorLoad:
        indices = placed(node.source, node.indices)
        return node if indices is None else tirx.BufferLoad(node.source, indices)

    def store(node: tirx.BufferStore) -> tirx.BufferStore:
        indices = placed(node.buffer, node.indices)
        return node if indices is None else tirx.BufferStore(node.buffer, node.value, indices)

    rules = [(tirx.Var, variable), (TensorLoad, load), (tirx.BufferStore, store)]
    return tvm_ffi.structural_map(body, rules, order="post")


def carries_items(module: KernelModule) -> bool:
    """Whether each value that depends on an input has dimensions, and each output is such a value."""
    carried = _carried(module)
    shaped = all(len(ty.shape.values) for var in carried for ty in types_of(var.ty))
    return shaped and all(o in carried for o in outputs_of(module.mod["main"]))


def for_items(module: KernelModule, size: tirx.Var, rule: Rule) -> KernelModule | None:
    """The module for `size` items; None if the rule has no kernel for one of its calls."""
    main = module.mod["main"]
    carried = _carried(module)
    kernels = _Kernels(module, rule)
    replace: dict[relax.Var, relax.Expr] = {
        p: relax.Var(p.name, _for_all(p.ty, size)) for p in main.params if p in carried
    }
    params = [replace.get(p, p) for p in main.params]
    bindings: list[tuple[relax.Var, relax.Expr, str]] = []
    for binding in bindings_of(main):
        value, var = binding.value, binding.var
        if is_kernel_call(value):
            types, given = types_of(var.ty), arguments_of(value)
            pattern = _pattern(binding, carried)
            gvar = kernels.for_items(value.args[0].name_hint, pattern, len(types))
            if gvar is None:
                return None
            if var in carried:
                given, types = [*given, size], [_for_all(ty, size) for ty in types]
            value = relax.call_tir(gvar, given, types if isinstance(var.ty, relax.TupleType) else types[0])
        elif var in carried and isinstance(value, relax.Call):
            value = relax.op.reshape(value.args[0], _for_all(var.ty, size).shape)
        bindings.append((var, substitute(value, replace), var.name))
    outputs = [substitute(o, replace) for o in outputs_of(main)]
    return dataclasses.replace(module, mod=write_main(kernels.builder.get(), params, bindings, outputs))


def _carried(module: KernelModule) -> set[relax.Var]:
    """The values that depend on an input."""
    main = module.mod["main"]
    found = {p for p in main.params if p.name not in module.arrays}
    for binding in bindings_of(main):
        if any(v in found for v in vars_of(binding.value)):
            found.add(binding.var)
    return found


def _pattern(binding: relax.VarBinding, carried: set[relax.Var]) -> Pattern:
    results = types_of(binding.var.ty)
    return (*(g in carried for g in arguments_of(binding.value)), *(binding.var in carried for _ in results))


def _for_all(ty: relax.TensorType, size: tirx.Var) -> relax.TensorType:
    first, *rest = ty.shape.values
    return relax.TensorType([size if int(first) == 1 else size * first, *rest], ty.dtype.dtype)


class _Kernels:
    """The kernels of a module for all items, one for each pattern of arguments."""

    def __init__(self, module: KernelModule, rule: Rule) -> None:
        self.builder = relax.BlockBuilder()
        self._module = module
        self._rule = rule
        self._found: dict[tuple[str, Pattern], relax.GlobalVar] = {}
        self._taken: set[str] = {gvar.name_hint for gvar, _ in module.mod.functions_items()}

    def for_items(self, name: str, pattern: Pattern, results: int) -> relax.GlobalVar | None:
        """The kernel of this name for such arguments, of which the last `results` are written."""
        if (name, pattern) not in self._found:
            function = self._module.mod[name]
            if any(pattern):
                function = self._rule(function, pattern, results)
            if function is None:
                return None
            fresh = name
            if any(known == name for known, _ in self._found):
                fresh = next(f"{name}_{n}" for n in range(len(self._taken) + 1) if f"{name}_{n}" not in self._taken)
                self._taken.add(fresh)
            self._found[name, pattern] = self.builder.add_func(function.with_attr("global_symbol", fresh), fresh)
        return self._found[name, pattern]
