"""Fusion of a normalisation's kernels: reductions of the same rows, with the elementwise kernels between them.

TVM fuses a reduction with the elementwise kernels after it, but not with the next reduction. So a LayerNormalization is
three kernels, with tensors of the size of its input in between. Cheap arithmetic before the first is fused too.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from heterocc.compiler.lower.backend import KernelInfo
from heterocc.compiler.lower.relax.kernels import KernelModule
from heterocc.compiler.lower.straight import (
    arguments_of,
    bindings_of,
    is_kernel_call,
    outputs_of,
    vars_of,
    with_kernel,
    write_main,
)
from heterocc.compiler.lower.written import BROADCAST, pattern_of

MOST = 8
"""The most kernels that are fused to one."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A kernel call with one output: the binding, its index in `main`, the kernel's symbol, the tensor arguments."""

    binding: relax.VarBinding
    place: int
    symbol: str
    given: tuple[relax.Expr, ...]
    info: KernelInfo


Form = Callable[[tirx.PrimFunc], bool]
"""Whether a kernel is of a form."""


def is_cheap(function: tirx.PrimFunc) -> bool:
    """Whether a kernel is arithmetic on elements, which costs less in every pass over a row than a tensor between."""
    if pattern_of(function) > BROADCAST:
        return False
    found: list[bool] = []
    tvm_ffi.structural_walk(function.body, [(ir.Call, lambda _: found.append(True))], order="post")
    return not found


def merge_rows(
    module: KernelModule, reduces_rows: Form, leads: Form = is_cheap, most_parameters: bool = False
) -> KernelModule:
    """The module with kernels joined that reduce the same rows one after another, and at most one before them.

    `reduces_rows` says whether the back end writes a kernel as reductions of the same rows, `leads` whether it takes a
    kernel before them along. With `most_parameters` a joined kernel has no more parameters than the part that has most.
    """
    main = module.mod["main"]
    bindings = list(bindings_of(main))
    uses = Counter(v for b in bindings for v in vars_of(b.value))
    uses.update(v for o in outputs_of(main) for v in vars_of(o))
    calls = _calls(bindings, module.kernels)
    reduces = {symbol: reduces_rows(module.mod[symbol]) for symbol in {c.symbol for c in calls}}
    groups: list[tuple[list[_Call], tirx.PrimFunc]] = []
    joined = _Joined(module, reduces_rows, most_parameters)
    index = 0
    while index < len(calls):
        begins = reduces[calls[index].symbol] or (
            index + 1 < len(calls) and reduces[calls[index + 1].symbol] and leads(module.mod[calls[index].symbol])
        )
        group = calls[index : index + MOST]
        found = _group(group, uses, joined) if begins else None
        if found is not None:
            groups.append(found)
        index += len(found[0]) if found is not None else 1
    return _rewritten(module, bindings, groups) if groups else module


def _calls(bindings: Sequence[relax.VarBinding], kernels: Sequence[KernelInfo]) -> list[_Call]:
    infos = iter(kernels)
    calls = []
    for place, binding in enumerate(bindings):
        value = binding.value
        if not is_kernel_call(value):
            continue
        info = next(infos)
        if isinstance(value.ty, relax.TensorType) and len(value.args) == 2:
            calls.append(_Call(binding, place, value.args[0].name_hint, tuple(arguments_of(value)), info))
    return calls


class _Joined:
    """The kernels of calls that are joined, if they are `wanted`. Equal calls, as in layers of a network, have one."""

    def __init__(self, module: KernelModule, wanted: Form, most_parameters: bool = False) -> None:
        self._module, self._wanted, self._most_parameters = module, wanted, most_parameters
        self._known: dict[Hashable, tirx.PrimFunc | None] = {}

    def of(self, group: Sequence[_Call]) -> tirx.PrimFunc | None:
        """The kernel of these calls, one after another; None if they cannot be joined, or are not to be."""
        numbers: dict[relax.Expr, int] = {}
        key = tuple(
            (c.symbol, *((numbers.setdefault(v, len(numbers)), str(v.ty)) for v in (*c.given, c.binding.var)))
            for c in group
        )
        if key not in self._known:
            found = _joined(self._module, group, self._most_parameters)
            self._known[key] = found if found is not None and self._wanted(found) else None
        return self._known[key]


def _group(
    calls: Sequence[_Call], uses: Counter[relax.Var], joined: _Joined
) -> tuple[list[_Call], tirx.PrimFunc] | None:
    """The longest run of calls from the first on that can be fused, and the fused kernel; None if there is none."""
    best = None
    for count in range(2, len(calls) + 1):
        group = list(calls[:count])
        if group[-1].place != group[0].place + count - 1:
            break
        inside = [c.binding.var for c in group[:-1]]
        if not any(v in inside for v in group[-1].given):
            break
        read = Counter(v for c in group for v in c.given)
        if any(read[v] != uses[v] for v in inside):
            continue
        found = joined.of(group)
        if found is not None:
            best = group, found
    return best


def _joined(module: KernelModule, group: Sequence[_Call], most_parameters: bool) -> tirx.PrimFunc | None:
    """The calls as one kernel whose parameters are what they are given from outside, in order, and the last output."""
    outside: dict[relax.Expr, tirx.Buffer] = {}
    results: dict[relax.Var, tirx.Buffer] = {}
    allocated: list[tirx.Buffer] = []
    bodies: list[tirx.Stmt] = []
    sizes: list[tuple[tirx.Expr, tirx.Var]] = []
    most = 0
    for call in group:
        function = s_tir.renew_defs(module.mod[call.symbol])
        most = max(most, len(function.params))
        if not all(isinstance(p.ty, tirx.BufferType) for p in function.params):
            return None  # it computes with a size
        if len(function.params) == len(call.given) + 1:
            function = _with_sizes(function, [*(v.ty for v in call.given), call.binding.var.ty], sizes)
        replace = []
        for parameter, value in zip(function.params, call.given, strict=False):
            known = results.get(value, outside.get(value))
            if known is None:
                outside[value] = parameter
            else:
                replace.append((parameter, known))
        results[call.binding.var] = function.params[len(call.given)]
        if len(function.params) != len(call.given) + 1 or not isinstance(function.body, s_tir.SBlockRealize):
            return None  # a kernel that is written already has no blocks
        root = function.body.block
        if not _is_of_blocks(root.body):
            return None  # the check of indices, say, which those who read blocks do not see
        bodies.append(_substituted(root.body, replace) if replace else root.body)
        allocated += [*root.alloc_buffers, results[call.binding.var]]
    params = [*outside.values(), allocated.pop()]
    if most_parameters and len(params) > most:
        return None
    if not _sizes_in(allocated) <= _sizes_in(params):
        return None  # no tensor shows a size of what is between the kernels, such as that of a slice which is summed
    block = s_tir.SBlock([], [], [], "root", tirx.SeqStmt(bodies), None, allocated)
    return tirx.PrimFunc(params, s_tir.SBlockRealize([], True, block), attrs=module.mod[group[0].symbol].attrs)


def _is_of_blocks(body: tirx.Stmt) -> bool:
    """Whether all that a kernel does is done by blocks."""
    if isinstance(body, tirx.SeqStmt):
        return all(map(_is_of_blocks, body.seq))
    return isinstance(body, s_tir.SBlockRealize) or (isinstance(body, tirx.For) and _is_of_blocks(body.body))


def _sizes_in(buffers: Iterable[tirx.Buffer]) -> set[tirx.Var]:
    return {v for buffer in buffers for dim in buffer.shape for v in tirx.analysis.undefined_vars(dim)}


def _with_sizes(
    function: tirx.PrimFunc, types: Sequence[relax.TensorType], sizes: list[tuple[tirx.Expr, tirx.Var]]
) -> tirx.PrimFunc:
    """A kernel with one variable for each size of `main` in all kernels; `sizes` has them and is added to."""
    for number, ty in enumerate(types):
        old = function.params[number]
        shape = list(old.shape)
        for place, (dim, given) in enumerate(zip(shape, ty.shape.values, strict=True)):
            if isinstance(dim, tirx.Var):
                known = next((var for size, var in sizes if tvm_ffi.structural_equal(size, given)), None)
                shape[place] = known if known is not None else dim
                if known is None:
                    sizes.append((given, dim))
        if not all(a.same_as(b) for a, b in zip(shape, old.shape, strict=True)):
            fresh = tirx.decl_buffer(shape, old.ty.dtype, old.name, scope=old.ty.storage_scope)
            function = function.specialize({old: fresh})
    return function


def _substituted(body: tirx.Stmt, values: Sequence[tuple[tirx.Buffer, tirx.Buffer]]) -> tirx.Stmt:
    def variable(var: tirx.Buffer | tirx.Var) -> tirx.Expr:
        return next((new for old, new in values if old.same_as(var)), var)

    return tvm_ffi.structural_map(body, [(tirx.Var, variable)], order="post")


def _rewritten(
    module: KernelModule, bindings: Sequence[relax.VarBinding], groups: Sequence[tuple[Sequence[_Call], tirx.PrimFunc]]
) -> KernelModule:
    main = module.mod["main"]
    gone = {c.place for group, _ in groups for c in group[:-1]}
    last = {group[-1].place: (group, joined) for group, joined in groups}
    left = {
        b.value.args[0].name_hint
        for i, b in enumerate(bindings)
        if is_kernel_call(b.value) and i not in gone | last.keys()
    }
    builder = relax.BlockBuilder()
    gvars = {name: builder.add_func(module.mod[name], name) for name in sorted(left)}
    shared: list[tuple[tirx.PrimFunc, relax.GlobalVar]] = []
    infos = iter(module.kernels)
    kept: list[tuple[relax.Var, relax.Call, str]] = []
    kernels: list[KernelInfo] = []
    for place, binding in enumerate(bindings):
        value = binding.value
        info = next(infos) if is_kernel_call(value) else None
        if place in gone:
            continue
        if place in last:
            group, joined = last[place]
            gvar = next((g for known, g in shared if tvm_ffi.structural_equal(known, joined)), None)
            name = group[0].info.symbol
            if gvar is None:
                free = name if name not in gvars else f"{name}_joined"
                gvar = builder.add_func(joined.with_attr("global_symbol", free), free)
                gvars[free] = gvar
                shared.append((joined, gvar))
                name = free
            inside = [c.binding.var for c in group[:-1]]
            given = dict.fromkeys(v for c in group for v in c.given if v not in inside)
            value = relax.call_tir(gvar, list(given), binding.value.ty)
            info = _info(name, group)
        elif is_kernel_call(value):
            value = with_kernel(value, gvars[value.args[0].name_hint])
        kept.append((binding.var, value, binding.var.name))
        if info is not None:
            kernels.append(info)
    mod = write_main(builder.get(), main.params, kept, outputs_of(main))
    return dataclasses.replace(module, mod=mod, kernels=tuple(kernels))


def _info(symbol: str, group: Sequence[_Call]) -> KernelInfo:
    nodes = tuple(dict.fromkeys(n for c in group for n in c.info.nodes))
    return KernelInfo(symbol, nodes, group[-1].info.outputs)
