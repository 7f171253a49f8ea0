"""Scheduling of a partition's kernels for a GPU. The schedules never assume that work items run in lock step."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

import tvm_ffi
from tvm import relax, s_tir, tirx

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.lower.arranged import Arranged
from heterocc.compiler.lower.gpu.layouts import layout_of
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import Packed
from heterocc.compiler.lower.gpu.reduction.one_term import without_single_terms
from heterocc.compiler.lower.gpu.reduction.row_form import joins_rows
from heterocc.compiler.lower.gpu.regions import with_single_reads
from heterocc.compiler.lower.gpu.rules import RULES, SIZED_RULES, scheduled_by
from heterocc.compiler.lower.gpu.tuning.tune import Kernel, Tuner
from heterocc.compiler.lower.gpu.wide_sums import with_wide_sums
from heterocc.compiler.lower.kernels.quotients import truncating
from heterocc.compiler.lower.kernels.transposed import repacked
from heterocc.compiler.lower.launches import launches
from heterocc.compiler.lower.pipeline import KernelModule
from heterocc.compiler.lower.progress import counted
from heterocc.compiler.lower.reasons import reason_of
from heterocc.compiler.lower.relax.kernels import always_among, kernel_calls
from heterocc.compiler.lower.relax.merge import merge_rows
from heterocc.compiler.lower.straight import (
    bindings_of,
    is_kernel_call,
    outputs_of,
    substitute,
    vars_of,
    with_kernel,
    write_main,
)

if TYPE_CHECKING:
    from tvm.target import Target


_THREADED = frozenset({"scatter_elements_gpu", "scatter_nd_gpu"})
"""Kernels that TVM generates with GPU threads whose work items are independent. Others (scan, sort) assume that work
items run in lock step, or synchronise several work groups."""


def schedule_kernels(module: KernelModule, target: Target, limits: Limits, tuner: Tuner | None = None) -> KernelModule:
    """Bind every kernel of the module to work items, and repack weights if a schedule needs it.

    `tuner` chooses the schedules of large kernels by timing; without it, static cost models choose.

    Raises LoweringError that names the node of a kernel that cannot be bound.
    """
    module = merge_rows(module, joins_rows, most_parameters=True)
    node_of = {k.symbol: k.nodes[-1] for k in reversed(module.kernels) if k.nodes}
    packable, nodes = _packable(module), {k.symbol: k.nodes for k in module.kernels}
    inputs = {symbol: len(arguments) for _, symbol, arguments in kernel_calls(module)}
    kernels: dict[str, Packed] = {}
    with target:
        for gvar, function in counted("scheduling kernels", module.mod.functions_items()):
            if isinstance(function, tirx.PrimFunc):
                symbol = gvar.name_hint
                where = f"node '{node_of[symbol]}'" if symbol in node_of else None
                whole = with_single_reads(with_wide_sums(without_single_terms(function)))
                packs = packable.get(symbol, frozenset())
                packed = None
                if tuner is not None and symbol in inputs and _fits(whole, limits):
                    outputs = len(whole.params) - inputs[symbol]
                    packed = tuner.choose(Kernel(symbol, nodes.get(symbol, ()), whole, packs, outputs), limits)
                kernels[symbol] = packed or _scheduled(whole, limits, where, packs)
    return _rewritten(module, kernels)


def _scheduled(function: tirx.PrimFunc, limits: Limits, where: str | None, packable: frozenset[int]) -> Packed:
    for dtype in tensor_dtypes(function):
        if dtype not in limits.dtypes:
            raise LoweringError(
                f"the device does not support {dtype}",
                where=where,
                hint="list another device after this one",
            )
    ready, others = _ready_made(function)
    unknown = [name for name in ready if name not in _THREADED]
    if unknown:
        raise LoweringError(
            f"TVM's GPU kernel '{unknown[0]}' needs work items in lock step, which the device does not guarantee",
            where=where,
            hint="list CPU after this device",
        )
    if ready and not others:
        return Packed(function)
    problem, sized = "", is_sized(function)
    for rule in SIZED_RULES if sized else RULES:
        try:
            packed = scheduled_by(rule, function, limits, packable)
        except s_tir.ScheduleError as error:
            problem = reason_of(error)
            continue
        except LoweringError as error:
            raise LoweringError(error.message, where=where, hint=error.hint) from None
        if packed is not None:
            return dataclasses.replace(packed, function=truncating(packed.function)) if sized else packed
    raise LoweringError(
        f"a kernel cannot be bound to work items: {problem}",
        where=where,
        hint="list CPU after this device",
    )


def _fits(function: tirx.PrimFunc, limits: Limits) -> bool:
    """Whether the device supports the kernel's dtypes and the kernel is to be scheduled by several rules."""
    return not is_sized(function) and not _ready_made(function)[0] and limits.dtypes.issuperset(tensor_dtypes(function))


def _packable(module: KernelModule) -> dict[str, frozenset[int]]:
    """For each kernel, the indices of the arguments that are weights in every call and have no other reader."""
    main = module.mod["main"]
    uses = Counter(v for b in bindings_of(main) for v in vars_of(b.value))
    weights = {p for p in main.params if p.name in module.arrays and uses[p] == 1}
    weights -= {v for o in outputs_of(main) for v in vars_of(o)}
    return always_among(module, weights)


def _rewritten(module: KernelModule, kernels: dict[str, Packed]) -> KernelModule:
    """The module with scheduled kernels and repacked weights."""
    main = module.mod["main"]
    builder = relax.BlockBuilder()
    gvars = {symbol: builder.add_func(kernel.function, symbol) for symbol, kernel in kernels.items()}
    replace: dict[relax.Var, relax.Var] = {}
    arrays = dict(module.arrays)
    arranged: dict[str, Arranged] = {}
    for _, symbol, arguments in kernel_calls(module):
        for index, layout in kernels[symbol].layouts:
            old = arguments[index]
            plain = arrays[old.name]
            arrays[old.name], found = repacked(plain, layout_of(layout, plain.shape), layout.apply)
            if found is not None:
                arranged[old.name] = found
            replace[old] = relax.Var(old.name, relax.TensorType(arrays[old.name].shape, arrays[old.name].dtype.name))
    bindings = []
    for binding in bindings_of(main):
        value = substitute(binding.value, replace)
        if is_kernel_call(value):
            value = with_kernel(value, gvars[value.args[0].name_hint])
        bindings.append((binding.var, value, binding.var.name))
    params = [replace.get(p, p) for p in main.params]
    mod = write_main(builder.get(), params, bindings, outputs_of(main))
    return dataclasses.replace(module, mod=mod, arrays=arrays, arranged=arranged)


def _ready_made(function: tirx.PrimFunc) -> tuple[list[str], list[str]]:
    """The names of the blocks that TVM has already bound to work items, and of the others."""
    ready: list[str] = []
    others: list[str] = []

    def visit(block: s_tir.SBlock) -> None:
        if block.name_hint != "root":
            (ready if launches(block) else others).append(str(block.name_hint))

    tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, visit)], order="post")
    return ready, others


def is_sized(function: tirx.PrimFunc) -> bool:
    """Whether sizes of a kernel's tensors are known only at run time, or it computes with such sizes."""
    tensors = [p for p in function.params if isinstance(p.ty, tirx.BufferType)]
    return len(tensors) < len(function.params) or any(not isinstance(d, tirx.IntImm) for t in tensors for d in t.shape)


def tensor_dtypes(function: tirx.PrimFunc) -> tuple[str, ...]:
    """The dtypes of the kernel's tensors, without those of index arithmetic."""
    found = [p.ty.dtype for p in function.params]
    buffers: list[tirx.Buffer] = []
    tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, lambda n: buffers.extend(n.alloc_buffers))], order="post")
    found.extend(b.dtype for b in buffers)
    return tuple(dict.fromkeys(str(getattr(d, "dtype", d)) for d in found))
