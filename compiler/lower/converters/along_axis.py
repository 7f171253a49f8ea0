"""Kernels for CPUs that follow one axis of an array: the place of its extreme, and running sums and products.

An array is [outer, axis, inner]. Vectors are along `inner`, or along the axis if it is the last one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.written import WRITTEN

LANES = 16
WIDE = 4
"""The vectors that a task advances together along the axis."""

PARALLEL_ELEMENTS = 1 << 16
"""The smallest number of elements that is divided among threads."""

Running = Literal["sum", "product"]

_OPAQUE = 8  # TVM's pattern of kernels that are not fused with others


def write_index_of(
    shape: Sequence[int], axis: int, result: Sequence[int], *, largest: bool, last: bool
) -> tirx.PrimFunc:
    """The kernel `(data, result)`: the int64 index of the extreme of float32 along `axis`, the first or last of equals.

    NaN is never an extreme, except as the first element of all.
    """
    outer, count, inner = _split(shape, axis)

    def body(data: tirx.Buffer, places: tirx.Buffer) -> None:
        if inner == 1:
            with _loop(outer, outer * count) as row:
                found = _in_row(data, row * _index(count), count, largest=largest, last=last)
                build.buffer_store(places, found, [row])
            return
        with _columns(outer, count, inner) as (task, starts, lanes):
            _in_columns(data, places, (task, starts, lanes), (count, inner), largest=largest, last=last)

    return _kernel("index_of", (shape, "float32"), (result, "int64"), body)


def write_running(
    shape: Sequence[int], axis: int, dtype: str, kind: Running, *, exclusive: bool, reverse: bool
) -> tirx.PrimFunc:
    """The kernel `(data, result)`: running sums or products along an axis that is not the last one."""
    outer, count, inner = _split(shape, axis)
    neutral = tirx.const(0 if kind == "sum" else 1, dtype)

    def body(data: tirx.Buffer, results: tirx.Buffer) -> None:
        with _columns(outer, count, inner) as (task, starts, lanes):
            totals = [_register(lanes, dtype) for _ in starts]
            for total in totals:
                _put(total, _broadcast(neutral, lanes), _index(0), lanes)
            with build.serial(_index(0), _index(count)) as step:
                at = _index(count - 1) - step if reverse else step
                for total, start in zip(totals, starts, strict=True):
                    place = (task * _index(count) + at) * _index(inner) + start
                    before = _vector(total, _index(0), lanes)
                    value = _vector(data, place, lanes)
                    after = before + value if kind == "sum" else before * value
                    if exclusive:
                        _put(results, before, place, lanes)
                    _put(total, after, _index(0), lanes)
                    if not exclusive:
                        _put(results, _vector(total, _index(0), lanes), place, lanes)

    return _kernel("running", (shape, dtype), (shape, dtype), body)


def has_columns(shape: Sequence[int], axis: int) -> bool:
    """Whether an axis is followed by others, which `write_running` needs."""
    return _split(shape, axis)[2] > 1


def _in_row(data: tirx.Buffer, begin: tirx.Expr, count: int, *, largest: bool, last: bool) -> tirx.Expr:
    """The index in a row of `count` elements: its extreme first, then the place of that."""
    lanes = LANES if count >= LANES else 1
    starts = [*range(0, count - lanes + 1, lanes)]
    tail = count - lanes if count % lanes else None
    head = build.bind(data[begin])
    is_number = _is_number(head)
    chains = min(WIDE, len(starts))
    best = _register(lanes * chains, "float32")
    _put(best, _broadcast(_cleaned(head, largest), lanes * chains), _index(0), lanes * chains)

    def take(at: tirx.Expr, chain: int) -> None:
        value, held = _vector(data, begin + at, lanes), _vector(best, _index(chain * lanes), lanes)
        _put(best, tirx.Select(_wins(value, held, largest), value, held), _index(chain * lanes), lanes)

    whole = len(starts) // chains
    with build.serial(_index(0), _index(whole)) as number:
        for chain in range(chains):
            take(number * _index(chains * lanes) + _index(chain * lanes), chain)
    for start in starts[whole * chains :]:
        take(_index(start), 0)
    if tail is not None:
        take(_index(tail), 0)
    extreme = build.bind(_halved(best, lanes, chains, lambda a, b: tirx.Select(_wins(a, b, largest), a, b)))

    none = tirx.const(-1 if last else count, "int32")
    place = _register(lanes, "int32")
    _put(place, _broadcast(none, lanes), _index(0), lanes)

    def nearer(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        return tirx.max(a, b) if last else tirx.min(a, b)

    def look(at: tirx.Expr) -> None:
        found = _vector(data, begin + at, lanes).equal(_broadcast(extreme, lanes))
        here = at.astype("int32")
        numbers = here if lanes == 1 else tirx.Ramp(here, tirx.const(1, "int32"), lanes)
        seen = tirx.Select(found, numbers, _broadcast(none, lanes))
        _put(place, nearer(_vector(place, _index(0), lanes), seen), _index(0), lanes)

    with build.serial(_index(0), _index(len(starts))) as number:
        look(number * _index(lanes))
    if tail is not None:
        look(_index(tail))
    found = build.bind(_halved(place, lanes, 1, nearer))
    zero = tirx.const(0, "int32")
    found = tirx.max(found, zero) if last else tirx.Select(is_number, found, zero)
    return found.astype("int64")


def _in_columns(
    data: tirx.Buffer,
    places: tirx.Buffer,
    where: tuple[tirx.Expr, Sequence[tirx.Expr], int],
    sizes: tuple[int, int],
    *,
    largest: bool,
    last: bool,
) -> None:
    """The indices in vectors of columns."""
    (task, starts, lanes), (count, inner) = where, sizes
    begin = build.bind(task * _index(count * inner))
    held = [(_register(lanes, "float32"), _register(lanes, "int32")) for _ in starts]
    for (best, place), start in zip(held, starts, strict=True):
        _put(best, _cleaned(_vector(data, begin + start, lanes), largest, lanes), _index(0), lanes)
        _put(place, _broadcast(tirx.const(0, "int32"), lanes), _index(0), lanes)
    if count > 1:
        with build.serial(_index(1), _index(count)) as step:
            for (best, place), start in zip(held, starts, strict=True):
                value = _vector(data, begin + step * _index(inner) + start, lanes)
                known, old = (_vector(buffer, _index(0), lanes) for buffer in (best, place))
                wins = _wins(value, known, largest, ties=last)
                number = _broadcast(step.astype("int32"), lanes)
                _put(place, tirx.Select(wins, number, old), _index(0), lanes)
                _put(best, tirx.Select(wins, value, known), _index(0), lanes)
    for (_, place), start in zip(held, starts, strict=True):
        wide = _vector(place, _index(0), lanes).astype("int64" if lanes == 1 else f"int64x{lanes}")
        _put(places, wide, task * _index(inner) + start, lanes)


def _wins(a: tirx.Expr, b: tirx.Expr, largest: bool, *, ties: bool = False) -> tirx.Expr:
    """A comparison that is false for NaN."""
    kind = (tirx.GE if largest else tirx.LE) if ties else (tirx.GT if largest else tirx.LT)
    return kind(a, b)


def _cleaned(value: tirx.Expr, largest: bool, lanes: int = 1) -> tirx.Expr:
    """A first element: NaN wins against all numbers."""
    best = _broadcast(tirx.const(math.inf if largest else -math.inf, "float32"), lanes)
    return tirx.Select(_is_number(value, lanes), value, best)


def _is_number(value: tirx.Expr, lanes: int = 1) -> tirx.Expr:
    """A comparison that is false for NaN alone; TVM takes x = x for true."""
    return tirx.GE(value, _broadcast(tirx.const(-math.inf, "float32"), lanes))


def _halved(
    buffer: tirx.Buffer, lanes: int, chains: int, combine: Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
) -> tirx.Expr:
    """One number from the vectors of a register, by halves."""
    for chain in range(1, chains):
        both = combine(_vector(buffer, _index(0), lanes), _vector(buffer, _index(chain * lanes), lanes))
        _put(buffer, both, _index(0), lanes)
    while lanes > 1:
        lanes //= 2
        half = _register(lanes, buffer.dtype)
        _put(half, combine(_vector(buffer, _index(0), lanes), _vector(buffer, _index(lanes), lanes)), _index(0), lanes)
        buffer = half
    return buffer[_index(0)]


@contextmanager
def _columns(outer: int, count: int, inner: int) -> Iterator[tuple[tirx.Expr, list[tirx.Expr], int]]:
    """A loop over tiles of columns: the outer index, and the starts of vectors. The last ones overlap others."""
    lanes = LANES
    while lanes > inner:
        lanes //= 2
    vectors = -(-inner // lanes)
    wide = min(WIDE, vectors)
    tiles = -(-vectors // wide)
    with _loop(outer * tiles, outer * count * inner) as number:
        task = build.bind(tirx.floordiv(number, _index(tiles)))
        first = build.bind(tirx.floormod(number, _index(tiles)) * _index(wide * lanes))
        last = _index(inner - lanes)
        yield task, [build.bind(tirx.min(first + _index(v * lanes), last)) for v in range(wide)], lanes


@contextmanager
def _loop(extent: int, elements: int) -> Iterator[tirx.Expr]:
    """A loop, parallel if there are enough elements."""
    kind = build.parallel if elements >= PARALLEL_ELEMENTS and extent > 1 else build.serial
    with kind(_index(0), _index(extent)) as var:
        yield var


def _kernel(
    name: str,
    given: tuple[Sequence[int], str],
    made: tuple[Sequence[int], str],
    body: Callable[[tirx.Buffer, tirx.Buffer], None],
) -> tirx.PrimFunc:
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name(name)
        build.func_attr({"tirx.noalias": True, WRITTEN: True, "op_pattern": _OPAQUE})
        arguments = [
            build.arg(label, build.Buffer(tuple(map(_index, shape)), dtype))
            for label, (shape, dtype) in (("data", given), ("result", made))
        ]
        flat = [
            build.decl_buffer((_index(math.prod(shape)),), dtype, data=tirx.buffer_data(buffer))
            for buffer, (shape, dtype) in zip(arguments, (given, made), strict=True)
        ]
        body(*flat)
    return builder.get().without_attr("global_symbol")


def _split(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _index(number: int) -> tirx.Expr:
    return tirx.IntImm("int64", number)


def _register(lanes: int, dtype: str) -> tirx.Buffer:
    """A buffer that is small enough for the stack, which LLVM promotes to registers."""
    return build.alloc_buffer((_index(lanes),), dtype, scope="global")


def _vector(buffer: tirx.Buffer, start: tirx.Expr, lanes: int) -> tirx.Expr:
    return buffer[start if lanes == 1 else build.ramp(start, _index(1), lanes)]


def _put(buffer: tirx.Buffer, value: tirx.Expr, start: tirx.Expr, lanes: int) -> None:
    build.buffer_store(buffer, value, [start if lanes == 1 else build.ramp(start, _index(1), lanes)])


def _broadcast(value: tirx.Expr, lanes: int) -> tirx.Expr:
    return value if lanes == 1 else build.broadcast(value, lanes)
