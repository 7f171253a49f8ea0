"""Casts between a kernel, which computes in float32, and the float16 tensors that it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, te, tirx
from tvm.ir import Call, TensorLoad

from heterocc.compiler.lower.launches import launches
from heterocc.compiler.lower.straight import bindings_of, outputs_of, types_of, with_kernel, write_main

if TYPE_CHECKING:
    from tvm.s_tir.schedule import SBlockRV


_POINTERS = frozenset(
    ["tirx.address_of", "tirx.tvm_access_ptr", "tirx.buffer_data", "tirx.call_packed", "tirx.tvm_call_packed"]
)
_WIDEN, _NARROW = "widen", "narrow"


def plain_memory(function: tirx.PrimFunc) -> bool:
    """Whether a kernel accesses its tensors only by loads and stores of single elements.

    Kernels that TVM has already scheduled for GPUs, or that pass pointers to other functions, depend on the types of
    their tensors.
    """
    other: list[Call] = []

    def visit(call: Call) -> None:
        if getattr(call.op, "name", "") in _POINTERS:
            other.append(call)

    tvm_ffi.structural_walk(function.body, [(Call, visit)], order="post")
    return not other and not launches(function.body)


def moves_only(function: tirx.PrimFunc) -> bool:
    """Whether a kernel only writes elements of its inputs and constants, like padding or transposition."""
    other: list[s_tir.SBlock] = []

    def visit(block: s_tir.SBlock) -> None:
        if str(block.name_hint) != "root" and not (
            block.init is None and isinstance(block.body, tirx.BufferStore) and _is_half(block.body.value, moved=True)
        ):
            other.append(block)

    tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, visit)], order="post")
    return not other


class Narrower:
    """Derives kernels that read and write float16 from those of a module, one for each combination of types called."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._builder = relax.BlockBuilder()
        self._made: dict[tuple[str, tuple[bool, ...], tuple[bool, ...]], relax.GlobalVar] = {}
        self._casts: dict[tuple[Any, ...], relax.GlobalVar] = {}
        self._original: dict[str, relax.GlobalVar] = {}
        self._fused: set[str] = set()

    @staticmethod
    def type_of(ty: relax.TensorType) -> relax.TensorType:
        """A float32 tensor type as float16."""
        return relax.TensorType(ty.shape, "float16")

    def module(self) -> tvm.IRModule:
        """The functions made so far."""
        return self._builder.get()

    def call(
        self,
        call: relax.Call,
        arguments: Sequence[relax.Expr],
        reads: tuple[bool, ...],
        writes: tuple[bool, ...],
        symbol: str,
    ) -> relax.Call:
        """The call with a kernel that reads and writes float16 tensors as marked in `reads` and `writes`.

        A new kernel gets the name `symbol`.
        """
        key = (call.args[0].name_hint, reads, writes)
        if not any((*reads, *writes)):
            if key not in self._made:
                function = self._mod[call.args[0]].with_attr("global_symbol", symbol)
                self._made[key] = self._builder.add_func(function, symbol)
            return with_kernel(call, self._made[key])
        if key not in self._made:
            self._made[key] = self._function(call, arguments, reads, writes, symbol)
            self._fused.add(symbol)
        return relax.Call(self._made[key], list(arguments))

    def _function(
        self,
        call: relax.Call,
        arguments: Sequence[relax.Expr],
        reads: tuple[bool, ...],
        writes: tuple[bool, ...],
        symbol: str,
    ) -> relax.GlobalVar:
        builder = self._builder
        kernel = self._kept(call.args[0])
        tensors = [p.ty for p in self._mod[call.args[0]].params]
        types = [self.type_of(a.ty) if half else a.ty for a, half in zip(arguments, reads, strict=True)]
        params = [relax.Var(f"p{i}", ty) for i, ty in enumerate(types)]
        with builder.function(symbol, params=params, attrs={"Primitive": True}, private=True):
            with builder.dataflow():
                given = [
                    self._cast(p, a.ty, tensor, _WIDEN) if half else p
                    for p, a, tensor, half in zip(params, arguments, tensors, reads, strict=False)
                ]
                result = builder.emit(relax.call_tir(kernel, given, types_of(call.ty_args[0])))
                results = [result]
                if len(writes) > 1:
                    results = [builder.emit(relax.TupleGetItem(result, i)) for i in range(len(writes))]
                results = [
                    self._cast(r, self.type_of(r.ty), tensor, _NARROW) if half else r
                    for r, tensor, half in zip(results, tensors[len(arguments) :], writes, strict=True)
                ]
                output = builder.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
            builder.emit_func_output(output)
        return builder.get().get_global_var(symbol)

    def _kept(self, gvar: relax.GlobalVar) -> relax.GlobalVar:
        """The float32 kernel, under a name that cannot be a symbol."""
        name = gvar.name_hint
        if name not in self._original:
            function = self._mod[gvar].without_attr("global_symbol")
            self._original[name] = self._builder.add_func(function, f"float32 {name}")
        return self._original[name]

    def _cast(self, value: relax.Expr, ty: relax.TensorType, tensor: tirx.BufferType, name: str) -> relax.Var:
        """`value` cast to `ty` by a kernel, with the shape as in `tensor`, the neighbouring kernel's parameter type."""
        extents = list(tensor.shape)
        key = (tuple((int(e), str(e.ty.dtype)) for e in extents), name)
        if key not in self._casts:
            source = te.placeholder(extents, str(value.ty.dtype.dtype), "source")
            cast = te.compute(extents, lambda *i: source(*i).astype(str(ty.dtype.dtype)), name)
            function = te.create_prim_func([source, cast]).with_attr("tirx.noalias", True)
            self._casts[key] = self._builder.add_func(function, f"{name} {len(self._casts)}")
        return self._builder.emit(relax.call_tir(self._casts[key], [value], ty))

    def finish(self, mod: tvm.IRModule) -> tvm.IRModule:
        """The module with each function fused to one kernel that casts as it loads and stores."""
        mod = relax.transform.FuseTIR()(mod)
        main = mod["main"]
        called = {b.value.args[0].name_hint for b in bindings_of(main) if _calls(b.value)}
        builder = relax.BlockBuilder()
        replace = {
            name: builder.add_func(
                _settled(mod[name]).with_attr("global_symbol", name) if name in self._fused else mod[name], name
            )
            for name in sorted(called)
        }
        bindings = []
        for binding in bindings_of(main):
            value = binding.value
            if _calls(value):
                value = with_kernel(value, replace[value.args[0].name_hint])
            bindings.append((binding.var, value, binding.var.name))
        return write_main(builder.get(), main.params, bindings, outputs_of(main))


def _calls(value: relax.Expr) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.args[0], relax.GlobalVar)


def _settled(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A fused kernel with blocks that only cast inlined, and float16 for temporaries whose values are exact in it."""
    schedule = s_tir.Schedule(function)
    for block in _blocks(schedule):
        name = str(schedule.get(block).name_hint)
        if name.startswith(_WIDEN):
            _try(schedule.compute_inline, block)
        elif name.startswith(_NARROW):
            _try(schedule.reverse_compute_inline, block)
    local = {b.name for b in schedule.get(schedule.get_sblock("root")).alloc_buffers}
    for block in _blocks(schedule):
        node = schedule.get(block)
        stored = getattr(node.body, "value", None)
        if node.init is None and stored is not None and node.writes[0].source.name in local and _is_half(stored):
            _try(schedule.unsafe_set_dtype, block, 0, "float16")
    settled = schedule.mod["main"]
    casts = [(tirx.Cast, lambda cast: _half(cast.value) if str(cast.ty.dtype) == "float16" else cast)]
    settled = tvm_ffi.structural_map(settled, casts, order="post")
    return settled.with_attrs(dict(function.attrs.items()))


def _blocks(schedule: s_tir.Schedule) -> list[SBlockRV]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def _try(step: Callable[..., Any], *arguments: Any) -> None:
    """Try a scheduling step. If it fails, the cast stays a separate block, which the back end schedules like others."""
    try:
        step(*arguments)
    except s_tir.ScheduleError:
        return


def _is_half(expr: tirx.Expr, moved: bool = False) -> bool:
    """Whether the value of a float32 expression is exact in float16; with `moved`, loads count as exact."""
    if isinstance(expr, TensorLoad):
        return moved
    if isinstance(expr, tirx.Cast):
        return str(expr.ty.dtype) == "float32" and str(expr.value.ty.dtype) == "float16"
    if isinstance(expr, tirx.FloatImm):
        with np.errstate(over="ignore"):
            return float(np.float16(expr.value)) == float(expr.value)
    choices = _choices(expr)
    return bool(choices) and all(_is_half(choice, moved) for choice in choices)


def _choices(expr: tirx.Expr) -> tuple[tirx.Expr, ...]:
    if isinstance(expr, tirx.Select):
        return expr.true_value, expr.false_value
    if isinstance(expr, Call) and getattr(expr.op, "name", "") == "prim.if_then_else":
        return tuple(expr.args[1:])
    return ()


def _half(expr: tirx.Expr) -> tirx.Expr:
    """A float32 expression as float16, without casts to float32 and back."""
    if not _is_half(expr):
        return expr.astype("float16")
    if isinstance(expr, tirx.Cast):
        return expr.value
    if isinstance(expr, tirx.FloatImm):
        return tirx.const(float(expr.value), "float16")
    if isinstance(expr, tirx.Select):
        return tirx.Select(expr.condition, _half(expr.true_value), _half(expr.false_value))
    return tirx.if_then_else(expr.args[0], _half(expr.args[1]), _half(expr.args[2]))
