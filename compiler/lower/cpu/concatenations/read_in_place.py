"""Parts of values that are not copied: what reads them gets views of the whole.

A part along an axis that only ones precede lies in one piece, so Split, and Slice with a step of one, need no kernel.
A part that can be written into a concatenation by its copy (`in_place.py`) keeps that copy, unless it is joined again
with all the others: then the whole is written there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from tvm import relax, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.backend import KernelInfo
from heterocc.compiler.lower.cpu.blocks import read_blocks
from heterocc.compiler.lower.cpu.concatenations.in_place import BYTES, joined_arguments, merged
from heterocc.compiler.lower.cpu.generate.places import Linear, linear
from heterocc.compiler.lower.kernels.expressions import is_iters
from heterocc.compiler.lower.relax.importer import dtype_name, static_shape
from heterocc.compiler.lower.relax.kernels import Home, KernelModule
from heterocc.compiler.lower.straight import (
    arguments_of,
    bindings_of,
    is_kernel_call,
    outputs_of,
    types_of,
    vars_of,
    write_main,
)


def read_in_place(module: KernelModule) -> KernelModule:
    """The module with views of wholes in place of the kernels that copy parts of fixed shapes from them."""
    main = module.mod["main"]
    bindings = bindings_of(main)
    fields: dict[relax.Var, dict[int, relax.Var]] = {}
    for binding in bindings:
        if isinstance(binding.value, relax.TupleGetItem):
            fields.setdefault(binding.value.tuple_value, {})[int(binding.value.index)] = binding.var
    outputs = set(outputs_of(main))
    cut: dict[relax.Var, dict[relax.Var, tuple[relax.Var, int]]] = {}
    for binding in bindings:
        results = fields.get(binding.var, {0: binding.var})
        parts_here = None if outputs.intersection(results.values()) else _parts(module, binding)
        if parts_here is not None:
            cut[binding.var] = {var: parts_here[place] for place, var in results.items()}
    parts = {var: part for parts_here in cut.values() for var, part in parts_here.items()}
    homes = {var.name: Home(whole.name, start) for var, (whole, start) in parts.items()}
    named = {v.name: v for b in bindings for v in (b.var, *vars_of(b.value))}
    for binding in bindings:
        if is_kernel_call(binding.value):
            given = arguments_of(binding.value)
            joined = [given[n] for n in joined_arguments(module.mod[binding.value.args[0]])]
            for part in merged(joined, homes, named):
                if part in cut:  # its own kernel writes it into the concatenation
                    del cut[part], parts[part], homes[part.name]
    return _with_views(module, cut, parts) if cut else module


def _parts(module: KernelModule, binding: relax.VarBinding) -> list[tuple[relax.Var, int]] | None:
    """For each result of a kernel that only copies parts, the whole and its first byte there; None for others."""
    if not is_kernel_call(binding.value) or len(binding.value.args) != 2:
        return None
    arguments = arguments_of(binding.value)
    whole = arguments[0] if len(arguments) == 1 else None
    if not isinstance(whole, relax.Var) or whole.name in module.arrays or not _is_fixed(whole.ty):
        return None
    types = types_of(binding.var.ty)
    starts = part_starts(module.mod[binding.value.args[0]]) if all(map(_is_fixed, types)) else None
    return None if starts is None else [(whole, start * BYTES[dtype_name(whole.ty)]) for start in starts]


def _is_fixed(ty: relax.Type) -> bool:
    return isinstance(ty, relax.TensorType) and static_shape(ty) is not None and dtype_name(ty) in BYTES


def part_starts(function: tirx.PrimFunc) -> list[int] | None:
    """The first element of each result that is a part of the argument, in one piece; None for another kernel."""
    blocks = read_blocks(function)
    whole, *results = function.params
    if not blocks or len(blocks) != len(results):
        return None
    starts = []
    for result in results:
        block = next((b for b in blocks if b.store.buffer.same_as(result)), None)
        if block is None or block.is_reduction or not is_iters(block.store.indices, block.iters):
            return None
        load = block.store.value
        if not isinstance(load, TensorLoad) or not load.source.same_as(whole) or len(load.indices) != len(block.iters):
            return None
        shape = [int(n) for n in whole.shape]
        axis = next((n for n, extent in enumerate(shape) if extent > 1), 0)
        forms = [linear(i, block.iters) for i in load.indices]
        along = forms[axis]
        begin = 0 if along is None else along.constant
        for dim, form in enumerate(forms):
            place = Linear(begin if dim == axis else 0, tuple(int(n == dim) for n in range(len(forms))))
            trivial = block.extents[dim] == 1 and form == Linear(place.constant, (0,) * len(forms))
            if form != place and not trivial:
                return None
            if dim != axis and block.extents[dim] != shape[dim]:
                return None
        if not 0 <= begin <= shape[axis] - block.extents[axis]:
            return None
        starts.append(begin * math.prod(shape[axis + 1 :]))
    return starts


def _with_views(
    module: KernelModule,
    cut: Mapping[relax.Var, object],
    parts: Mapping[relax.Var, tuple[relax.Var, int]],
) -> KernelModule:
    """The module without the kernels of `cut`, whose results are views. Another kernel takes on their nodes."""
    main = module.mod["main"]
    calls = [b for b in bindings_of(main) if is_kernel_call(b.value)]
    kernels: dict[relax.Var, KernelInfo] = {}
    left: list[str] = []
    sources = {b.var: vars_of(b.value) for b in bindings_of(main)}
    for binding, kernel in zip(calls, module.kernels, strict=True):
        if binding.var not in cut:
            kernels[binding.var] = dataclasses.replace(kernel, nodes=(*kernel.nodes, *left))
            left.clear()
            continue
        writer: relax.Var | None = binding.var
        while writer is not None and writer not in kernels:
            writer = _first(sources.get(writer, ()))
        if writer is None:  # an input: the next kernel
            left += kernel.nodes
        else:
            kernels[writer] = dataclasses.replace(kernels[writer], nodes=(*kernels[writer].nodes, *kernel.nodes))
    bindings = []
    for binding in bindings_of(main):
        var, value = binding.var, binding.value
        if var in parts:
            whole, start = parts[var]
            value = relax.op.memory.view(whole, var.ty.shape, var.ty.dtype.dtype, relax.prim_value(start))
        elif var in cut:
            continue
        bindings.append((var, value, var.name))
    functions = {b.value.args[0] for b in calls if b.var not in cut}
    idle = {b.value.args[0] for b in calls} - functions
    mod = write_main(module.mod, main.params, bindings, outputs_of(main))
    for gvar in idle:
        del mod[gvar.name_hint]
    return dataclasses.replace(module, mod=mod, kernels=tuple(kernels.values()))


def _first(values: Sequence[relax.Var]) -> relax.Var | None:
    return values[0] if values else None
