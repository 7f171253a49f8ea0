"""Vectors of which only some lanes are read or stored, by an instruction set that has masks."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import (
    Element,
    can_store,
    copied,
    form_of,
    kept_registers,
    outputs_of,
)
from heterocc.compiler.lower.cpu.generate.places import Axis, Linear, Place, index, is_dense, offset, offset_at
from heterocc.compiler.lower.cpu.generate.read import Fold, Kernel, Stage
from heterocc.compiler.lower.cpu.sizes import Size, is_one
from heterocc.compiler.lower.kernels.expressions import dtype_of, loads


def mask(first: tirx.Expr, lanes: int, count: Size) -> tirx.Expr:
    """Which of `lanes` places from `first` on are among `count`; some may precede them, and be negative."""
    if lanes == 1:
        return tirx.all(first >= index(0), first < index(count))
    places = build.ramp(tirx.Cast("int32", first), tirx.const(1, "int32"), lanes)
    if isinstance(first, tirx.IntImm):  # TVM has no negative constants without a sign
        below = places < build.broadcast(tirx.Cast("int32", index(count)), lanes)
        return tirx.And(places >= emit.zeros(lanes, "int32"), below) if int(first) < 0 else below
    # As numbers without a sign, those before the first are larger than all others. They are added with one: TVM tells
    # LLVM that other sums never wrap around, and would move a cast into the sum.
    return tirx.reinterpret(f"uint32x{lanes}", places) < build.broadcast(tirx.Cast("uint32", index(count)), lanes)


def held_mask(first: tirx.Expr, lanes: int, count: Size) -> tirx.Buffer:
    """A mask in a register, as numbers: TVM binds no truth values, and LLVM would compare again at each use."""
    numbers = tirx.Cast(f"int32x{lanes}" if lanes > 1 else "int32", mask(first, lanes, count))
    return emit.register(numbers, lanes, "int32")


def kept_by(held: tirx.Buffer, lanes: int) -> tirx.Expr:
    """The mask that `held_mask` has put in a register."""
    return emit.vector(held, index(0), lanes) != emit.zeros(lanes, "int32")


def masked_vector(buffer: tirx.Buffer, start: tirx.Expr, lanes: int, kept: tirx.Expr, other: float = 0.0) -> tirx.Expr:
    """Consecutive elements of a flat buffer where `kept` holds, else `other`, which may be outside the memory."""
    if lanes == 1:
        return tirx.if_then_else(kept, buffer[start], build.float32(other))
    # TVM's own operator leaves the others undefined, of which LLVM makes use.
    where, others = tirx.address_of(buffer[start]), emit.broadcast(build.float32(other), lanes)
    return tirx.call_llvm_intrin(f"float32x{lanes}", "llvm.masked.load", where, kept, others)


def put_masked(buffer: tirx.Buffer, value: tirx.Expr, start: tirx.Expr, kept: tirx.Expr) -> None:
    """Store a vector to consecutive elements of a flat buffer where `kept` holds."""
    # TVM's own operator leaves out at which place of other memory a buffer begins, as part of a concatenation does.
    where = tirx.address_of(buffer[start])
    build.evaluate(tirx.call_llvm_intrin("void", "llvm.masked.store", value, where, kept))


def can_mask(kernel: Kernel | Fold, row: Axis) -> bool:
    """Whether `store_masked` supports the epilogue for vectors along an axis: it reads numbers beside each other."""
    if not can_store(kernel, ("float32",)):
        return False
    places = [kernel.loops[n] for n in kernel.places]
    if any(offset(places, b, kernel.loops) is None for b in outputs_of(kernel)):
        return False
    for stage in kernel.after:
        for load in loads(stage.value):
            if _is_inside(kernel, load):
                continue
            form = _form(kernel, stage, load)
            step = None if form is None else row.step(form)
            if not is_dense(step) or (is_one(step) and dtype_of(load) != "float32"):
                return False
    return True


def _is_inside(kernel: Kernel | Fold, load: TensorLoad) -> bool:
    """Whether a stage reads a value of the kernel's own, which is in registers."""
    return any(load.source.same_as(b) for b in (kernel.sum_, *(s.buffer for s in kernel.after)))


def _form(kernel: Kernel | Fold, stage: Stage, load: TensorLoad) -> Linear | None:
    """The place of what a stage reads from an argument as a linear form of the kernel's loops."""
    given = kernel.argument(load.source) is not None
    return form_of(kernel, load.indices, load.source, stage.iters) if given else None


def store_masked(
    kernel: Kernel | Fold,
    arguments: Arguments,
    sums: tirx.Buffer,
    rows: int | tirx.Expr,
    lanes: int,
    along: Axis,
    place: Callable[[tirx.Expr, tirx.Expr], Place],
    kept: tirx.Expr | None,
) -> None:
    """Store `rows` of `lanes` of `sums` where `kept` holds, all of them if it is None.

    `place(row, lane)` is where a number belongs; lanes lie `along` an axis. Sums of a number of rows that is an
    expression are in memory.
    """
    in_memory = isinstance(rows, tirx.Expr)
    heavy = in_memory or (kernel.is_heavy and rows > 1)
    held = sums
    if heavy and not isinstance(rows, tirx.Expr):
        held = copied(sums, rows, lanes)
    with emit.loop(rows, "serial" if heavy else "unroll") as row:
        registers = kept_registers(kernel, lanes)
        results = [(buffer, emit.registers(1, lanes)) for buffer in outputs_of(kernel)]
        first = Element(kernel, arguments, None, registers, place(row, index(0)), index(0))
        read = []
        for stage in kernel.after:
            for load in loads(stage.value):
                form = None if _is_inside(kernel, load) else _form(kernel, stage, load)
                if form is not None and is_one(along.step(form)):
                    flat, where = arguments.flat(load.source), offset_at(form, place(row, index(0)))
                    inside = kept is None
                    taken = emit.vector(flat, where, lanes) if inside else masked_vector(flat, where, lanes, kept)
                    read.append((load, emit.register(taken, lanes)))
        with emit.loop(lanes, "vectorized") as lane:
            total = held[row * index(lanes) + lane]
            Element(kernel, arguments, total, registers, place(row, lane), lane, read, results).store()
        for buffer, result in results:
            stored = emit.vector(result, index(0), lanes)
            where = first.offset_of(buffer)
            assert where is not None
            if kept is None:
                emit.put(arguments.flat(buffer), stored, where, lanes)
            else:
                put_masked(arguments.flat(buffer), stored, where, kept)
