"""The code of a partition's kernels for a CPU: generated, or in plain loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax, tirx

from heterocc.compiler.lower.arranged import Arranged
from heterocc.compiler.lower.codegen.scopes import without_scopes
from heterocc.compiler.lower.cpu.alignment import at_any_address
from heterocc.compiler.lower.cpu.common_code import families, with_common_code
from heterocc.compiler.lower.cpu.concatenations.in_place import joined_in_place, parts_among
from heterocc.compiler.lower.cpu.dynamic.guarded import sized_kernel
from heterocc.compiler.lower.cpu.dynamic.own_sizes import with_numbered_sizes, with_own_sizes, with_typical_batch
from heterocc.compiler.lower.cpu.generate.candidates import Done, Packing
from heterocc.compiler.lower.cpu.generate.generate import generate
from heterocc.compiler.lower.cpu.generate.integers.limited import LimitedPanels
from heterocc.compiler.lower.cpu.generate.isa import Isa, isa_of
from heterocc.compiler.lower.cpu.generate.layouts import layout_of
from heterocc.compiler.lower.cpu.generate.panels import LEAST, Panels, narrowed
from heterocc.compiler.lower.cpu.generate.requested.write import write_requested
from heterocc.compiler.lower.cpu.generate.rows.joins import joined_rows
from heterocc.compiler.lower.cpu.loops import in_loops
from heterocc.compiler.lower.cpu.sizes import dims_of, has_sizes
from heterocc.compiler.lower.cpu.sources import source
from heterocc.compiler.lower.kernels.transposed import repacked
from heterocc.compiler.lower.pipeline import KernelModule
from heterocc.compiler.lower.progress import counted
from heterocc.compiler.lower.relax.kernels import always_among, calls_run
from heterocc.compiler.lower.straight import (
    arguments_of,
    bindings_of,
    is_kernel_call,
    outputs_of,
    vars_of,
    with_kernel,
    write_main,
)
from heterocc.compiler.lower.written import REQUEST, SOURCE, WRITTEN

if TYPE_CHECKING:
    from tvm.target import Target


def schedule_kernels(
    module: KernelModule,
    target: Target,
    *,
    in_place: bool = True,
    rounded: Collection[str] = (),
    fast_math: bool = False,
    on_kernel: Callable[[tirx.PrimFunc], object] | None = None,
    known: dict[str, Done] | None = None,
    stored: Collection[str] = (),
) -> KernelModule:
    """The module with its kernels scheduled for `target` and its weights packed as the schedules require.

    `in_place` lets kernels write their results into a concatenation. `rounded` are the nodes whose products have
    factors rounded to bfloat16. `fast_math` allows ways with larger rounding errors. `on_kernel` is called with each
    kernel when its code is complete. Kernels that differ only in sizes get one function. `known` keeps what is written,
    for those of other parts of a program that are equal. `stored` are types of 16 bits in which weights may stay.
    """
    known = {} if known is None else known
    isa = dataclasses.replace(isa_of(target), fast_math=fast_math)
    module = joined_rows(module)
    module = joined_in_place(module) if in_place else module
    params = module.mod["main"].params
    weights = always_among(module, {p for p in params if p.name in module.arrays})
    parts = parts_among(module)
    paired = _paired(module, rounded)
    every = {
        gvar.name_hint: with_numbered_sizes(with_typical_batch(with_own_sizes(f)))
        for gvar, f in module.mod.functions_items()
        if gvar.name_hint != "main"
    }
    packings: dict[str, tuple[Packing, ...]] = {}
    calls = {symbol for symbol, _ in calls_run(module)}
    functions = {symbol: f for symbol, f in every.items() if symbol not in calls}  # not run: results written in place
    kernels = [(symbol, f) for symbol, f in every.items() if symbol in calls]
    alike = families([f for _, f in kernels])
    ordered = [(family, *kernels[place]) for family, places in enumerate(alike) for place in places]
    with target:
        for _, family in groupby(counted("scheduling kernels", ordered), itemgetter(0)):
            codes: dict[str, tirx.PrimFunc] = {}
            for _, symbol, function in family:
                constant, inside = weights.get(symbol, frozenset()), parts.get(symbol, ())
                weights_of = partial(_weights_of, module, symbol)
                narrow = {n: name for n in sorted(constant) if (name := _stored_as(weights_of(n), stored))}
                bfloat = symbol in paired
                here = dataclasses.replace(isa, bfloat=bfloat, weights_of=weights_of, stored=narrow)
                codes[symbol], packings[symbol] = _written(function, constant, inside, here, known)
            for symbol, code in zip(codes, with_common_code(list(codes.values())), strict=True):
                functions[symbol] = code
                if on_kernel is not None:
                    on_kernel(code)
    return _with_kernels(module, functions, packings)


def _written(
    function: tirx.PrimFunc, weights: Collection[int], parts: Collection[int], isa: Isa, known: dict[str, Done]
) -> Done:
    """A kernel, and the packings of its weights; `parts` are arguments at any address."""
    name = source(function, sorted(weights), sorted(parts), isa)
    sizes = {var.name for dim in dims_of(function) for var in tirx.analysis.undefined_vars(dim)}
    key = f"{name}{sorted(sizes)}"  # with their typical values, which a source leaves out
    if key in known:
        return known[key]
    scheduled, wanted = kernel_code(function, weights, isa)
    made = without_scopes(at_any_address(scheduled, parts))
    others = [p.key for p in wanted if isinstance(p, LimitedPanels)]  # they depend on the weights
    if others:
        return made.with_attr(SOURCE, f"{name}{others}"), wanted
    known[key] = made.with_attr(SOURCE, name), wanted
    return known[key]


def _weights_of(module: KernelModule, symbol: str, number: int) -> list[np.ndarray]:
    """The weights that the calls of a kernel have for an argument."""
    calls = (b.value for b in bindings_of(module.mod["main"]) if is_kernel_call(b.value))
    given = (arguments_of(call)[number] for call in calls if call.args[0].name_hint == symbol)
    return [module.arrays[argument.name] for argument in given]


def _stored_as(weights: Sequence[np.ndarray], types: Collection[str]) -> str:
    """The one of some types of 16 bits that holds the weights exactly; empty if none does, or one is small."""
    if any(weight.dtype != np.float32 or weight.nbytes < LEAST for weight in weights):
        return ""
    return next((name for name in types if all(narrowed(weight, name) is not None for weight in weights)), "")


def _paired(module: KernelModule, nodes: Collection[str]) -> frozenset[str]:
    """The kernels that in every call compute one of `nodes`."""
    if not nodes:
        return frozenset()
    calls = calls_run(module)
    others = {symbol for symbol, info in calls if not any(name in nodes for name in info.nodes)}
    return frozenset(symbol for symbol, _ in calls if symbol not in others)


def kernel_code(function: tirx.PrimFunc, weights: Collection[int], isa: Isa) -> Done:
    """The kernel itself if it is generated already, its generated form, or plain loops if no generator supports it.

    `weights` are the argument numbers that hold parameters. Returns the kernel and the packings of these.
    """
    if REQUEST in function.attrs:
        return write_requested(function, isa), ()
    if WRITTEN in function.attrs:
        return function, ()
    if has_sizes(function):
        return sized_kernel(function, weights, isa)
    return generate(function, weights, isa) or (in_loops(function), ())


def _with_kernels(
    module: KernelModule, functions: dict[str, tirx.PrimFunc], packings: dict[str, tuple[Packing, ...]]
) -> KernelModule:
    """The module with replaced kernels and packed weights in its calls."""
    main = module.mod["main"]
    builder = relax.BlockBuilder()
    gvars = {name: builder.add_func(function, name) for name, function in functions.items()}
    arrays: dict[str, np.ndarray] = dict(module.arrays)
    arranged: dict[str, Arranged] = {}
    replaced: dict[tuple[str, str], relax.Var] = {}
    bindings = []
    for binding in bindings_of(main):
        call = binding.value
        if is_kernel_call(call):
            name = call.args[0].name_hint
            arguments = arguments_of(call)
            for packing in packings.get(name, ()):
                old = arguments[packing.argument]
                key = (old.name, packing.key)
                if key not in replaced:
                    plain = module.arrays[old.name]
                    plain = packing.narrow(plain) if isinstance(packing, Panels) else np.asarray(plain)
                    array, layout = repacked(plain, layout_of(packing, plain.shape), packing.apply)
                    fresh = f"{old.name}_packed_{packing.key}"
                    replaced[key] = relax.Var(fresh, relax.TensorType(array.shape, array.dtype.name))
                    arrays[fresh] = array
                    if layout is not None:
                        arranged[fresh] = layout
                arguments[packing.argument] = replaced[key]
            call = with_kernel(call, gvars[name], arguments)
        bindings.append((binding.var, call, binding.var.name))
    used = {v for _, value, _ in bindings for v in vars_of(value)}
    params = [p for p in (*main.params, *replaced.values()) if p.name not in arrays or p in used]
    mod = write_main(builder.get(), params, bindings, outputs_of(main))
    left = {p.name: arrays[p.name] for p in params if p.name in arrays}
    return dataclasses.replace(module, mod=mod, arrays=left, arranged=arranged)
