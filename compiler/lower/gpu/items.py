"""Kernels that are scheduled for one item of a batch, launched for all items: a further axis of the grid."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.ir import Range, TensorLoad

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

_AXES = ("blockIdx.z", "blockIdx.y")
"""The axes of the grid for items, of which a kernel uses the first that its schedule leaves free."""

MOST_ITEMS = 65535
"""The most groups that every device launches along these axes."""


def over_items(module: KernelModule, size: tirx.Var) -> KernelModule | None:
    """The module for `size` items, whose kernels are scheduled for one; None if a kernel has no free axis.

    Items lie one after the other in every value that depends on an input.
    """
    main = module.mod["main"]
    carried = {p for p in main.params if p.name not in module.arrays}
    for binding in bindings_of(main):
        if any(v in carried for v in vars_of(binding.value)):
            carried.add(binding.var)
    shaped = all(len(ty.shape.values) for var in carried for ty in types_of(var.ty))
    if not shaped or not all(o in carried for o in outputs_of(main)):
        return None
    kernels = _Kernels(module)
    replace: dict[relax.Var, relax.Expr] = {}
    for param in main.params:
        if param in carried:
            replace[param] = relax.Var(param.name, _for_all(param.ty, size))
    params = [replace.get(p, p) for p in main.params]
    bindings: list[tuple[relax.Var, relax.Expr, str]] = []
    for binding in bindings_of(main):
        value, var = binding.value, binding.var
        if is_kernel_call(value):
            types, given = types_of(var.ty), arguments_of(value)
            pattern = (*(g in carried for g in given), *(var in carried for _ in types))
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


def _for_all(ty: relax.TensorType, size: tirx.Var) -> relax.TensorType:
    first, *rest = ty.shape.values
    return relax.TensorType([size if int(first) == 1 else size * first, *rest], ty.dtype.dtype)


class _Kernels:
    """The kernels of a module for all items, one for each pattern of arguments that hold items."""

    def __init__(self, module: KernelModule) -> None:
        self.builder = relax.BlockBuilder()
        self._module = module
        self._found: dict[tuple[str, tuple[bool, ...]], relax.GlobalVar] = {}
        self._taken: set[str] = {gvar.name_hint for gvar, _ in module.mod.functions_items()}

    def for_items(self, name: str, pattern: tuple[bool, ...], results: int) -> relax.GlobalVar | None:
        """The kernel of this name for such arguments, of which the last `results` are written."""
        if (name, pattern) not in self._found:
            function = self._module.mod[name]
            if any(pattern):
                function = _for_items(function, pattern, results)
            if function is None:
                return None
            fresh = name
            if any(known == name for known, _ in self._found):
                fresh = next(f"{name}_{n}" for n in range(len(self._taken) + 1) if f"{name}_{n}" not in self._taken)
                self._taken.add(fresh)
            self._found[name, pattern] = self.builder.add_func(function.with_attr("global_symbol", fresh), fresh)
        return self._found[name, pattern]


def _for_items(function: tirx.PrimFunc, pattern: Sequence[bool], results: int) -> tirx.PrimFunc | None:
    """A scheduled kernel with each of its launches extended by an axis for items; None if that is not possible."""
    root = function.body.block if isinstance(function.body, s_tir.SBlockRealize) else None
    if root is None or not _is_plain(root):
        return None
    count = tirx.Var("items", "int64")
    wide: list[tuple[tirx.Buffer, tirx.Buffer]] = []
    for param, mark in zip(function.params, pattern, strict=True):
        if mark:
            wide.append((param, _widened(param, count)))
    inner = [b for b in root.alloc_buffers if b.scope() == "global"]
    if any(len(b.shape) == 0 for b in inner):
        return None
    wide += [(b, _widened(b, count)) for b in inner]
    launches = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    bodies = [_launch_for_items(launch, wide, count) for launch in launches]
    if any(body is None for body in bodies):
        return None
    body = bodies[0] if len(bodies) == 1 else tirx.SeqStmt(bodies)
    new = dict(wide)
    allocated = [new.get(b, b) for b in root.alloc_buffers]
    block = s_tir.SBlock([], [], [], "root", body, None, allocated)
    params = [new.get(p, p) for p in function.params]
    first = len(params) - results
    realize = s_tir.SBlockRealize([], True, block)
    return tirx.PrimFunc([*params[:first], count, *params[first:]], realize, attrs=function.attrs)


def _is_plain(root: s_tir.SBlock) -> bool:
    """Whether tensors are accessed by loads and stores alone, and only loops are bound to axes of the grid."""
    others: list[object] = []

    def visit(block: s_tir.SBlock) -> None:
        others.extend(block.match_buffers)
        others.extend(b for b in block.alloc_buffers if b.scope() == "global" and not block.same_as(root))

    rules = [(s_tir.SBlock, visit), (tirx.DeclBuffer, others.append), (tirx.AttrStmt, others.append)]
    tvm_ffi.structural_walk(root, rules, order="post")
    return not others


def _launch_for_items(
    launch: tirx.Stmt, wide: Sequence[tuple[tirx.Buffer, tirx.Buffer]], count: tirx.Var
) -> tirx.Stmt | None:
    used: list[str] = []
    tvm_ffi.structural_walk(launch, [(tirx.For, lambda loop: used.append(_axis(loop)))], order="post")
    axis = next((a for a in _AXES if a not in used), None)
    if axis is None or not any(used):
        return None
    item = tirx.Var("item", "int64")

    def variable(var: tirx.Var) -> tirx.Var:
        return next((new for old, new in wide if old.same_as(var)), var)

    def placed(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> list[tirx.Expr] | None:
        rows = next((old.shape[0] for old, new in wide if new.same_as(buffer)), None)
        return None if rows is None else [indices[0] + item * rows, *indices[1:]]

    def load(found: TensorLoad) -> TensorLoad:
        indices = placed(found.source, found.indices)
        return found if indices is None else tirx.BufferLoad(found.source, indices)

    def store(found: tirx.BufferStore) -> tirx.BufferStore:
        indices = placed(found.buffer, found.indices)
        return found if indices is None else tirx.BufferStore(found.buffer, found.value, indices)

    rules = [(tirx.Var, variable), (TensorLoad, load), (tirx.BufferStore, store)]
    body = tvm_ffi.structural_map(launch, rules, order="post")
    thread = tirx.IterVar(Range(0, count), tirx.Var(axis, "int64"), tirx.IterVar.ThreadIndex, axis)
    start = tirx.const(0, "int64")
    return tirx.For(item, start, count, tirx.ForKind.THREAD_BINDING, body, thread_binding=thread)


def _axis(loop: tirx.For) -> str:
    """The axis of the grid that a loop is bound to; empty for other loops."""
    return "" if loop.thread_binding is None else str(loop.thread_binding.thread_tag)


def _widened(buffer: tirx.Buffer, count: tirx.Var) -> tirx.Buffer:
    ty = buffer.ty
    shape = [count * buffer.shape[0], *buffer.shape[1:]]
    return tirx.decl_buffer(shape, ty.dtype, buffer.name, scope=ty.storage_scope)
