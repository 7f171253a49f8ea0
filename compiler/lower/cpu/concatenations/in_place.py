"""Concatenations without a kernel: what they join is written where the result lies.

Parts of a concatenation along an axis that only ones precede follow each other in memory. Their kernels then write to
views of the result, which may itself be part of another. An output that only reshapes a value is its home, too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping

from tvm import relax, tirx

from heterocc.compiler.lower.backend import KernelInfo
from heterocc.compiler.lower.cpu.blocks import read_blocks
from heterocc.compiler.lower.cpu.generate.places import shape_of
from heterocc.compiler.lower.cpu.sizes import assuming, attempt, dims_of, is_one, same
from heterocc.compiler.lower.kernels.expressions import dtype_of, loads
from heterocc.compiler.lower.relax.importer import dtype_name, static_shape
from heterocc.compiler.lower.relax.kernels import Home, KernelModule
from heterocc.compiler.lower.relax.views import is_view, only_tensor
from heterocc.compiler.lower.straight import arguments_of, bindings_of, is_kernel_call, outputs_of, vars_of

CONCATENATED = "T_concat"
"""How TVM's blocks of a concatenation are called, and ours."""

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
    """The value that a kernel only reshapes, if it does."""
    part = only_tensor(call)
    if part is None or not is_view(module.mod[call.args[0]], call):
        return []
    while part in values and getattr(getattr(values[part], "op", None), "name", "") == "relax.reshape":
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


def _begins_inside(name: str, homes: Mapping[str, Home]) -> bool:
    """Whether a value begins elsewhere than the one that it and others are written to."""
    while name in homes:
        if not isinstance(homes[name].start, int) or homes[name].start:
            return True
        name = homes[name].whole
    return False


def parts_among(module: KernelModule) -> dict[str, frozenset[int]]:
    """For each kernel the numbers of the arguments, its output among them, that may begin inside another value."""
    parts: dict[str, frozenset[int]] = {}
    bindings = bindings_of(module.mod["main"])
    inside = {name for name in module.homes if _begins_inside(name, module.homes)}
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
    blocks = read_blocks(function) or ()
    if len(blocks) != 1 or not str(blocks[0].block.name_hint).startswith(CONCATENATED):
        return ()
    (block,) = blocks
    parts = [
        load.source for load in reversed(loads(block.store.value))
    ]  # conditions choose between the last ones first
    numbers = [n for part in parts for n, p in enumerate(function.params) if p.same_as(part)]
    shapes = [shape for part in parts if (shape := shape_of(part)) is not None]
    axis = next((n for n, extent in enumerate(block.extents) if not is_one(extent)), None)
    if axis is None or not len(numbers) == len(shapes) == len(parts):
        return ()
    pairs = [(size, block.extents[n]) for shape in shapes for n, size in enumerate(shape) if n != axis]
    beside = all(same(size, extent) for size, extent in pairs)
    whole = beside and same(sum(shape[axis] for shape in shapes), block.extents[axis])
    return tuple(numbers) if whole and dtype_of(block.store.buffer) in BYTES else ()
