"""Kernels for one item of a batch in a loop over the batch, so that a batch of any size runs code of fixed shapes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir import Call, TensorLoad

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
from heterocc.compiler.lower.written import ROWS

_Pattern = tuple[bool, ...]
"""For each argument and result of a call whether it holds items one after the other."""


def can_loop(module: KernelModule) -> bool:
    """Whether `over_batch` supports the module: each value that depends on an input has dimensions, as each output."""
    main = module.mod["main"]
    carried = _carried(module)
    shaped = all(len(ty.shape.values) for var in carried for ty in types_of(var.ty))
    return shaped and not module.homes and all(o in carried for o in outputs_of(main))


def over_batch(module: KernelModule, size: tirx.Var) -> KernelModule:
    """The module for `size` items, whose kernels are scheduled for one.

    Items lie one after the other in every value that depends on an input.
    """
    main = module.mod["main"]
    carried = _carried(module)
    kernels = _Kernels(module)
    replace: dict[relax.Var, relax.Expr] = {}
    params = []
    for param in main.params:
        if param.name not in module.arrays:
            replace[param] = relax.Var(param.name, _for_all(param.ty, size))
        params.append(replace.get(param, param))
    bindings: list[tuple[relax.Var, relax.Expr, str]] = []
    for binding in bindings_of(main):
        value, var = binding.value, binding.var
        if is_kernel_call(value):
            types = types_of(var.ty)
            given = arguments_of(value)
            pattern = (*(g in carried for g in given), *(var in carried for _ in types))
            gvar = kernels.looped(value.args[0].name_hint, pattern, len(types))
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


def _for_all(ty: relax.TensorType, size: tirx.Var) -> relax.TensorType:
    first, *rest = ty.shape.values
    return relax.TensorType([size if int(first) == 1 else size * first, *rest], ty.dtype.dtype)


class _Kernels:
    """The kernels of a module in loops over the batch, one for each pattern of arguments."""

    def __init__(self, module: KernelModule) -> None:
        self.builder = relax.BlockBuilder()
        self.module = module
        self._found: dict[tuple[str, _Pattern], relax.GlobalVar] = {}
        self._taken: set[str] = {gvar.name_hint for gvar, _ in module.mod.functions_items()}

    def looped(self, name: str, pattern: _Pattern, results: int) -> relax.GlobalVar:
        """The kernel of this name for such arguments, of which the last `results` are written."""
        if (name, pattern) not in self._found:
            function = self.module.mod[name]
            if any(pattern):
                function = _looped(function, pattern, results)
            fresh = name
            if any(known == name for known, _ in self._found):
                fresh = next(f"{name}_{n}" for n in range(len(self._taken) + 1) if f"{name}_{n}" not in self._taken)
                self._taken.add(fresh)
            self._found[name, pattern] = self.builder.add_func(function.with_attr("global_symbol", fresh), fresh)
        return self._found[name, pattern]


def _looped(function: tirx.PrimFunc, pattern: Sequence[bool], results: int) -> tirx.PrimFunc:
    count, item = tirx.Var("items", "int64"), tirx.Var("item", "int64")
    if ROWS in function.attrs:
        first = len(function.params) - results
        return tirx.PrimFunc(
            [*function.params[:first], count, *function.params[first:]], function.body, attrs=function.attrs
        )
    replace: list[tuple[tirx.Var, tirx.Var]] = []
    wide: list[tuple[tirx.Buffer, int]] = []
    for param, mark in zip(function.params, pattern, strict=True):
        if mark:
            buffer = _buffer(param, [count * param.shape[0], *param.shape[1:]], param.ty.elem_offset)
            replace.append((param, buffer))
            wide.append((buffer, int(param.shape[0])))

    def declared(statement: tirx.DeclBuffer) -> None:
        inside = statement.data.args if isinstance(statement.data, Call) else ()
        param = next((p for p, mark in zip(function.params, pattern, strict=True) if mark and _is_in(p, inside)), None)
        if param is not None:
            start = item * math.prod(int(d) for d in param.shape)
            replace.append((statement.buffer, _buffer(statement.buffer, statement.buffer.shape, start)))

    def variable(var: tirx.Var) -> tirx.Var:
        return next((new for old, new in replace if old.same_as(var)), var)

    def placed(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> list[tirx.Expr] | None:
        rows = next((n for b, n in wide if b.same_as(buffer)), None)
        return None if rows is None else [indices[0] + item * rows, *indices[1:]]

    def load(found: TensorLoad) -> TensorLoad:
        indices = placed(found.source, found.indices)
        return found if indices is None else tirx.BufferLoad(found.source, indices)

    def store(found: tirx.BufferStore) -> tirx.BufferStore:
        indices = placed(found.buffer, found.indices)
        return found if indices is None else tirx.BufferStore(found.buffer, found.value, indices)

    tvm_ffi.structural_walk(function.body, [(tirx.DeclBuffer, declared)], order="post")
    rules = [(tirx.Var, variable), (TensorLoad, load), (tirx.BufferStore, store)]
    body = tvm_ffi.structural_map(function.body, rules, order="post")
    if isinstance(body, s_tir.SBlockRealize):
        root = body.block
        inner = tirx.For(item, tirx.const(0, "int64"), count, tirx.ForKind.SERIAL, root.body)
        block = s_tir.SBlock([], [], [], "root", inner, None, root.alloc_buffers)
        body = s_tir.SBlockRealize([], True, block)
    else:
        body = tirx.For(item, tirx.const(0, "int64"), count, tirx.ForKind.SERIAL, body)
    params = [variable(p) for p in function.params]
    first = len(params) - results
    return tirx.PrimFunc([*params[:first], count, *params[first:]], body, attrs=function.attrs)


def _is_in(param: tirx.Var, expressions: Sequence[tirx.Expr]) -> bool:
    return any(param.same_as(e) for e in expressions)


def _buffer(like: tirx.Buffer, shape: Sequence[tirx.Expr], start: tirx.Expr) -> tirx.Buffer:
    ty = like.ty
    return tirx.decl_buffer(shape, ty.dtype, like.name, elem_offset=start, scope=ty.storage_scope, data_alignment=1)
