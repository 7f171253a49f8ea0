"""Concatenations without a kernel: what they join is written where the result lies.

Parts of a concatenation along an axis that only ones precede follow each other in memory. Their kernels then write to
views of the result, which may itself be part of another. An output that only reshapes a value is its home, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping

from tvm import relax, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.backend import KernelInfo
from heterocc.compiler.lower.cpu.blocks import BlockView, read_blocks
from heterocc.compiler.lower.cpu.generate.places import Linear, linear, shape_of
from heterocc.compiler.lower.cpu.sizes import assuming, attempt, dims_of
from heterocc.compiler.lower.kernels.expressions import dtype_of, is_conditional, is_iters
from heterocc.compiler.lower.relax.importer import dtype_name, static_shape
from heterocc.compiler.lower.relax.kernels import Home, KernelModule
from heterocc.compiler.lower.relax.views import is_view, only_tensor
from heterocc.compiler.lower.straight import arguments_of, bindings_of, is_kernel_call, is_static, outputs_of, vars_of

BYTES = {"float64": 8, "float32": 4, "float16": 2, "int64": 8, "int32": 4, "int8": 1, "uint8": 1}
"""Bytes of an element of each type that is joined."""


def joined_in_place(module: KernelModule) -> KernelModule:
    """The module with homes for the parts of concatenations whose every part can have one, and for reshaped outputs."""
    bindings = [b for b in bindings_of(module.mod["main"]) if is_kernel_call(b.value)]
    values = {b.var: b.value for b in bindings_of(module.mod["main"])}
    outputs = set(outputs_of(module.mod["main"]))
    written = {b.var for b in bindings if isinstance(b.var.ty, relax.TensorType) and b.var not in outputs}
    orders: dict[str, tuple[int, ...]] = {}
    homes: dict[str, Home] = {}
    kernels: dict[str, KernelInfo] = {}
    for binding, kernel in zip(bindings, module.kernels, strict=True):
        name = binding.value.args[0].name_hint
        if name not in orders:
            orders[name] = joined_of_any_size(module.mod[name])
        given = arguments_of(binding.value)
        if binding.var in outputs:
            parts = _reshaped(module, binding.value, values)
        else:
            parts = [given[n] for n in orders[name]] if binding.var in written else []
        free = all(p in written and p.name not in homes for p in parts) and len(set(parts)) == len(parts)
        if not parts or not free:
            kernels[binding.var.name] = kernel
            continue
        last = next(name for name in reversed(kernels) if _lies_in(name, {p.name for p in parts}, homes))
        kernels[last] = dataclasses.replace(kernels[last], nodes=(*kernels[last].nodes, *kernel.nodes))
        start: int | tirx.Expr = 0
        for part in parts:
            homes[part.name] = Home(binding.var.name, start)
            start = start + _bytes(part)
    return dataclasses.replace(module, kernels=tuple(kernels.values()), homes=homes) if homes else module


def _reshaped(module: KernelModule, call: relax.Call, values: Mapping[relax.Var, relax.Expr]) -> list[relax.Var]:
    """The value that a kernel of any size only reshapes, if it does; with fixed sizes such a copy is fused or quick."""
    part = only_tensor(call)
    if part is None or is_static(call) or not is_view(module.mod[call.args[0]], call):
        return []
    while part in values and _operator(values[part]) == "relax.reshape":
        part = values[part].args[0]
    return [part]


def _lies_in(name: str, parts: Collection[str], homes: Mapping[str, Home]) -> bool:
    """Whether a value is one of `parts` or a part of one."""
    while name not in parts and name in homes:
        name = homes[name].whole
    return name in parts


def _bytes(value: relax.Var) -> int | tirx.Expr:
    """The bytes of a value, an expression of the sizes that are known only at run time."""
    return math.prod(static_shape(value.ty) or value.ty.shape.values) * BYTES.get(dtype_name(value.ty), 0)


def _operator(value: relax.Expr) -> str | None:
    return getattr(value.op, "name", None) if isinstance(value, relax.Call) else None


def parts_among(module: KernelModule) -> dict[str, frozenset[int]]:
    """For each kernel the numbers of the arguments, its output among them, that may lie inside another value."""
    parts: dict[str, frozenset[int]] = {}
    bindings = bindings_of(module.mod["main"])
    inside = set(module.homes)
    for binding in bindings if inside else ():
        if is_kernel_call(binding.value):
            name = binding.value.args[0].name_hint
            given = [*arguments_of(binding.value), binding.var]
            here = frozenset(n for n, v in enumerate(given) if getattr(v, "name", None) in inside)
            parts[name] = parts.get(name, frozenset()) | here
        elif any(v.name in inside for v in vars_of(binding.value)):
            inside.add(binding.var.name)  # the same numbers in another shape
    return parts


def joined_of_any_size(function: tirx.PrimFunc) -> tuple[int, ...]:
    """As `joined_arguments`, also if sizes are known only at run time: of all sizes."""
    with assuming(dims_of(function)) as assumptions:
        joined = attempt(lambda: joined_arguments(function)) or ()
    return () if assumptions.guards else joined


def joined_arguments(function: tirx.PrimFunc) -> tuple[int, ...]:
    """The numbers of the arguments that a kernel only writes one after another in memory; none for other kernels."""
    if len(function.params) < 3:
        return ()
    blocks = read_blocks(function)
    block = blocks[0] if blocks is not None and len(blocks) == 1 else None
    if block is None or not is_iters(block.store.indices, block.iters) or "R" in block.kinds:
        return ()
    axis = next((n for n, extent in enumerate(block.extents) if extent > 1), None)
    loads = _choices(block.store.value, block, axis) if axis is not None else None
    if axis is None or loads is None:
        return ()
    numbers, end = [], 0
    for start, load in loads:
        number = next((n for n, p in enumerate(function.params) if p.same_as(load.source)), None)
        shape = shape_of(load.source)
        if number is None or shape is None or start != end or not _is_shifted(load, block, axis, start):
            return ()
        if any(n != extent for dim, (n, extent) in enumerate(zip(shape, block.extents, strict=True)) if dim != axis):
            return ()
        numbers.append(number)
        end += shape[axis]
    whole = end == block.extents[axis] and dtype_of(block.store.buffer) in BYTES
    return tuple(numbers) if whole else ()


def _choices(value: tirx.Expr, block: BlockView, axis: int) -> list[tuple[int, TensorLoad]] | None:
    """The loads between which conditions on the place along `axis` choose, and from where on each applies."""
    if isinstance(value, TensorLoad):
        return [(0, value)]
    if not is_conditional(value):
        return None
    condition, then, otherwise = value.args
    reached = isinstance(condition, tirx.LE) and isinstance(condition.a, tirx.IntImm)
    if not reached or not condition.b.same_as(block.iters[axis]) or not isinstance(then, TensorLoad):
        return None
    before = _choices(otherwise, block, axis)
    return None if before is None else [*before, (int(condition.a), then)]


def _is_shifted(load: TensorLoad, block: BlockView, axis: int, start: int) -> bool:
    """Whether a load reads the place of the block, counted from `start` along `axis`."""
    if len(load.indices) != len(block.iters):
        return False
    forms = [linear(i, block.iters) for i in load.indices]
    ones = [tuple(int(n == dim) for n in range(len(forms))) for dim in range(len(forms))]
    right = [Linear(-start if dim == axis else 0, one) for dim, one in enumerate(ones)]
    trivial = [block.extents[dim] == 1 and isinstance(i, tirx.IntImm) for dim, i in enumerate(load.indices)]
    return all(f == r or t for f, r, t in zip(forms, right, trivial, strict=True))
