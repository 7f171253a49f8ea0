"""The epilogue of a kernel: operations on each sum, applied to vectors in registers before they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate.emit import Arguments, loop, put, registers, vector
from heterocc.compiler.lower.cpu.generate.places import Linear, Place, at, index, loop_values, offset
from heterocc.compiler.lower.cpu.generate.read import Fold, Kernel, Nest, Stage
from heterocc.compiler.lower.cpu.generate.spans import in_vectors
from heterocc.compiler.lower.cpu.sizes import Size
from heterocc.compiler.lower.kernels.expressions import dtype_of, loads, substituted

STORED = ("float32", "float64", "float16", "int8", "uint8", "int32", "uint32", "int64", "uint64")
"""Types of outputs of which vectors are stored; TVM stores those of booleans bit by bit."""


Read: TypeAlias = tuple[TensorLoad, tirx.Buffer]
"""A load, and a register with what it reads of memory."""


def register_of(load: TensorLoad, read: Sequence[Read]) -> tirx.Buffer | None:
    """The register that has what a load reads, if one has."""
    return next((register for known, register in read if tvm_ffi.structural_equal(known, load)), None)


def can_store(kernel: Kernel | Fold, types: Sequence[str] = STORED) -> bool:
    """Whether `store_tile` supports the kernel's epilogue: it has outputs, all of these types."""
    given = outputs_of(kernel)
    return len(given) >= 1 and all(dtype_of(b) in types for b in given)


def outputs_of(kernel: Kernel | Fold) -> list[tirx.Buffer]:
    """The outputs among the sums and the results of the stages after them."""
    return [b for b in (kernel.sum_, *(s.buffer for s in kernel.after)) if kernel.argument(b) is not None]


def form_of(
    kernel: Nest, indices: Sequence[tirx.Expr], buffer: tirx.Buffer, iters: Sequence[tirx.Var]
) -> Linear | None:
    """The place of an access as a linear form of the kernel's loops: `iters` stand for those over outputs."""
    every = list(kernel.loops)
    for number, var in zip(kernel.places, iters, strict=True):
        every[number] = var
    return offset(indices, buffer, every)


def reads_in_epilogue(kernel: Kernel, buffer: tirx.Buffer) -> bool:
    """Whether a stage other than the contraction reads a buffer, so that its layout must not change."""
    return any(load.source.same_as(buffer) for s in (*kernel.before, *kernel.after) for load in loads(s.value))


def kept_registers(kernel: Nest, lanes: int) -> dict[int, tirx.Buffer]:
    """A register for each value that stages use several times, by the number of its stage."""
    return {number: registers(1, lanes, dtype_of(kernel.after[number].value)) for number in kernel.kept}


def copied(sums: tirx.Buffer, rows: int, lanes: int) -> tirx.Buffer:
    """A copy of accumulators. Indexed by a loop, they themselves would have to live in memory."""
    held = registers(rows, lanes, dtype_of(sums))
    copy_rows(held, sums, rows, lanes)
    return held


def copy_rows(to: tirx.Buffer, sums: tirx.Buffer, rows: int, lanes: int) -> None:
    """Copy accumulators."""
    with loop(rows, "unroll") as row:
        put(to, vector(sums, row * index(lanes), lanes), row * index(lanes), lanes)


def store_tile(
    kernel: Kernel | Fold,
    arguments: Arguments,
    sums: Sequence[tirx.Buffer],
    rows: int | tirx.Expr,
    lanes: int,
    place: Callable[[tirx.Expr, int, tirx.Expr], Place],
    width: Callable[[int], Size],
    *,
    in_memory: bool = False,
) -> None:
    """Store a tile: `sums` has one buffer per column of vectors, with `rows` vectors of `lanes` numbers.

    `place(row, column, lane)` is where a number belongs, `width(column)` how many lanes of a column's vectors do.
    `in_memory` is whether the sums are in memory, not in registers, as those of a number of rows that is an expression
    are.
    """
    heavy = kernel.is_heavy
    in_turn = heavy or in_memory or isinstance(rows, tirx.Expr)
    for column, buffer in enumerate(sums):
        kept = kept_registers(kernel, lanes)
        held = buffer
        if heavy and not in_memory and not isinstance(rows, tirx.Expr) and rows > 1:
            held = copied(buffer, rows, lanes)
        with loop(rows, "serial" if in_turn else "unroll") as row, loop(width(column), "vectorized") as lane:
            Element(kernel, arguments, held[row * index(lanes) + lane], kept, place(row, column, lane), lane).store()


def store_vectors(
    kernel: Kernel,
    arguments: Arguments,
    total: Callable[[tirx.Expr], tirx.Expr],
    place: Callable[[tirx.Expr], Place],
    length: Size,
    lanes: int,
) -> None:
    """Store `length` outputs in a row: `total(number)` is a sum, `place(number)` its place in the output."""
    kept = kept_registers(kernel, lanes)

    def store(start: tirx.Expr, width: int) -> None:
        with loop(width, "vectorized") as lane:
            Element(kernel, arguments, total(start + lane), kept, place(start + lane), lane).store()

    in_vectors(length, lanes, store, few=kernel.is_heavy)


@dataclass(frozen=True)
class Element:
    """One place of a kernel's outputs: `total` is its sum, `kept` are registers for values that several stages read.

    Registers have what some loads `read` of memory, and get the values of outputs that are among `results`.
    """

    kernel: Nest
    arguments: Arguments
    total: tirx.Expr | None
    kept: dict[int, tirx.Buffer]
    place: Place
    lane: tirx.Expr
    read: Sequence[Read] = ()
    results: Sequence[tuple[tirx.Buffer, tirx.Buffer]] = ()

    @cached_property
    def _values(self) -> list[tirx.Expr]:
        """The values of the loops over the outputs' places."""
        values = loop_values(self.place, self.kernel.loops)
        return [values[number][1] for number in self.kernel.places]

    def store(self) -> None:
        """Write the stores of the element, stage by stage."""
        kernel = self.kernel
        if self.total is not None and kernel.sum_ is not None and kernel.argument(kernel.sum_) is not None:
            self._give(kernel.sum_, self.total)
        for number, stage in enumerate(kernel.after):
            value = None
            if number in self.kept:
                build.buffer_store(self.kept[number], self._value_of(stage), [self.lane])
                value = self.kept[number][self.lane]
            if kernel.argument(stage.buffer) is not None:
                self._give(stage.buffer, self._value_of(stage) if value is None else value)

    def offset_of(self, buffer: tirx.Buffer) -> tirx.Expr | None:
        """The element's place in the memory of an output, if it is linear in the axes."""
        places = [self.kernel.loops[n] for n in self.kernel.places]
        return self._offset(places, buffer, places)

    def _give(self, buffer: tirx.Buffer, value: tirx.Expr) -> None:
        register = next((register for given, register in self.results if given.same_as(buffer)), None)
        where = self.offset_of(buffer)
        if register is not None:
            build.buffer_store(register, value, [self.lane])
        elif where is None:
            build.buffer_store(self.arguments.shaped(buffer), value, self._values)
        else:
            build.buffer_store(self.arguments.flat(buffer), value, [where])

    def _value_of(self, stage: Stage) -> tirx.Expr:
        return self._value(stage.value, stage.iters)

    def _value(self, expr: tirx.Expr, iters: Sequence[tirx.Var]) -> tirx.Expr:
        """An expression of a stage's iteration variables at this element."""
        loaded = substituted(expr, [], lambda load: self._load(load, iters))
        return substituted(loaded, list(zip(iters, self._values, strict=True)))

    def _load(self, load: TensorLoad, iters: Sequence[tirx.Var]) -> tirx.Expr:
        kernel = self.kernel
        if (register := register_of(load, self.read)) is not None:
            return register[self.lane]
        if self.total is not None and load.source.same_as(kernel.sum_):
            return self.total
        for number, stage in enumerate(kernel.after):
            if load.source.same_as(stage.buffer):
                return self.kept[number][self.lane] if number in self.kept else self._value_of(stage)
        before = kernel.stage(load.source)
        if before is not None:
            inside = substituted(before.value, list(zip(before.iters, load.indices, strict=True)))
            return self._value(inside, iters)
        if kernel.argument(load.source) is None:
            return load  # a vector register that an inner load became
        where = self._offset(load.indices, load.source, iters)
        if where is not None:
            return self.arguments.flat(load.source)[where]
        values = list(zip(iters, self._values, strict=True))
        return self.arguments.shaped(load.source)[tuple(substituted(i, values) for i in load.indices)]

    def _offset(self, indices: Sequence[tirx.Expr], buffer: tirx.Buffer, iters: Sequence[tirx.Var]) -> tirx.Expr | None:
        """The place in memory, if it is linear in the axes: `iters` stand for the loops over the output's places."""
        form = form_of(self.kernel, indices, buffer, iters)
        return None if form is None else at(form, self.place)
