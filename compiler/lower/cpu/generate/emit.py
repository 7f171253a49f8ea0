"""Building blocks of generated kernels: arguments, loops, and tiles of accumulators in vector registers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import prod
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.alignment import ANY_ADDRESS, argument_name
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Axis, index, shape_of
from heterocc.compiler.lower.cpu.generate.read import Nest
from heterocc.compiler.lower.cpu.generate.terms import FLOATS, Term
from heterocc.compiler.lower.cpu.generate.terms import as_float as as_float
from heterocc.compiler.lower.cpu.generate.terms import broadcast as broadcast
from heterocc.compiler.lower.cpu.generate.terms import vector as vector
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import Size, SizeUnknownError, is_number, is_one, larger, smaller, typical
from heterocc.compiler.lower.kernels.expressions import dtype_of, itemsize, substituted

PARALLEL_WORK = 1 << 18
"""The smallest number of multiply-adds that is divided among threads, about three microseconds of one."""

TASKS = 16
"""The smallest number of pieces that work is divided into, if possible: enough for the threads of any machine."""

UNROLL = 4
"""Unrolled steps of a reduction."""

ENOUGH_SUMS = 128
"""The numbers of sums of all terms of a turn that hide latency and the loop: with 64, AVX2 takes 1.1 to 1.25 times as
long."""

HELD_TERMS = 2 * UNROLL
"""Registers that a tile of few sums needs beside them: for vectors and some of the numbers of all unrolled terms."""

TOGETHER = 4
"""Vectors for which a function is computed together, step by step: its steps wait for each other otherwise."""


class Arguments:
    """The arguments of a kernel being written, by the buffers of the kernel read. They may be at any address."""

    def __init__(self, kernel: Nest, packed: Mapping[int, int], dtype: str | None = None) -> None:
        self._kernel = kernel
        self._packed = packed
        self._dtype = dtype
        self._given = [self._argument(number, p) for number, p in enumerate(kernel.function.params)]
        self._flat = [flat(b) if isinstance(b.ty, tirx.BufferType) else b for b in self._given]

    def _argument(self, number: int, param: tirx.Buffer) -> tirx.Buffer:
        if not isinstance(param.ty, tirx.BufferType):
            return build.arg(param.name, param)
        shape, dtype = shape_of(param), dtype_of(param)
        if number in self._packed:
            shape, dtype = (self._packed[number],), self._dtype or dtype
        assert shape is not None
        return build.arg(argument_name(number), build.Buffer(tuple(index(n) for n in shape), dtype, align=ANY_ADDRESS))

    def shaped(self, buffer: tirx.Buffer) -> tirx.Buffer:
        """The argument for `buffer`, in its own shape."""
        return self._given[self._number(buffer)]

    def flat(self, buffer: tirx.Buffer) -> tirx.Buffer:
        """The argument for `buffer`, as a flat buffer."""
        return self._flat[self._number(buffer)]

    def _number(self, buffer: tirx.Buffer) -> int:
        number = self._kernel.argument(buffer)
        assert number is not None
        return number


def flat(buffer: tirx.Buffer) -> tirx.Buffer:
    """A buffer as one of a single dimension."""
    size = prod(buffer.shape, start=index(1))
    return build.decl_buffer((size,), dtype_of(buffer), data=tirx.buffer_data(buffer))


def written(
    kernel: Nest, packed: Mapping[int, int], body: Callable[[Arguments], None], dtype: str | None = None
) -> tirx.PrimFunc:
    """The kernel with the body that `body` writes.

    `packed` are the lengths of weights given in another layout, `dtype` is their type if it is another one, too.
    """
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("kernel")
        build.func_attr({"tirx.noalias": True})
        body(Arguments(kernel, packed, dtype))
    function = builder.get()
    return function.with_attr("global_symbol", kernel.function.attrs["global_symbol"])


def guarded(generated: tirx.PrimFunc, guards: Sequence[tirx.Expr], other: tirx.PrimFunc) -> tirx.PrimFunc:
    """The generated kernel if all guards hold, else the other one, which has the same arguments.

    An element in memory holds whether they do: otherwise TVM simplifies the other kernel for sizes that do not meet
    them, and fails if one of these is 0 there and divides an index.
    """
    body = substituted(other.body, list(zip(other.params, generated.params, strict=True)))
    held, zero = tirx.decl_buffer((1,), "int32", "assumed"), tirx.const(0, "int64")
    one, none = tirx.const(1, "int32"), tirx.const(0, "int32")
    whole = tirx.SeqStmt(
        [
            tirx.AllocBuffer(held),
            tirx.BufferStore(held, tirx.Select(tirx.all(*guards), one, none), [zero]),
            tirx.IfThenElse(tirx.BufferLoad(held, [zero]) > none, generated.body, body),
        ]
    )
    return tirx.PrimFunc(list(generated.params), whole, attrs=generated.attrs)


@contextmanager
def loop(extent: Size | tirx.Expr, kind: str = "serial") -> Iterator[tirx.Expr]:
    """A loop over `extent`; omitted if it would run once.

    Raises SizeUnknownError for a vectorized loop over a size that is known only at run time.
    """
    if isinstance(extent, tirx.Expr):
        with getattr(build, kind)(index(0), extent) as var:
            yield var
        return
    if kind == "vectorized" and not is_number(extent):
        raise SizeUnknownError("the lanes of a vector")
    if is_one(extent):
        yield index(0)
        return
    with getattr(build, kind)(index(0), index(extent)) as var:
        yield var


def shared_loop(extent: Size, work: Size) -> AbstractContextManager[tirx.Expr]:
    """A loop, parallel if its `work`, in multiply-adds, is large enough."""
    return loop(extent, "parallel" if typical(work) >= PARALLEL_WORK else "serial")


def tasks_of(work: Size, most: Size) -> Size:
    """The number of tasks that threads share of `work` with something to prepare for each, `most` at most.

    Of work that is known only at run time, each has a quarter of what is divided at all: little work is one task.
    """
    if typical(work) < PARALLEL_WORK:
        return 1
    tasks = smaller(most, TASKS)
    return tasks if is_number(work) else larger(1, smaller(tasks, work // (PARALLEL_WORK // 4)))


def either(condition: tirx.Expr, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """An if statement with both branches."""
    with build.If(condition):
        with build.Then():
            then()
        with build.Else():
            otherwise()


def registers(count: int, lanes: int, dtype: str = "float32") -> tirx.Buffer:
    """Vectors that LLVM promotes to registers: a buffer under 1 KiB, which TVM keeps on the stack."""
    assert count * lanes * itemsize(dtype) < 1024
    return build.alloc_buffer((count * lanes,), dtype, scope="global")


def register(value: tirx.Expr, lanes: int, dtype: str = "float32") -> tirx.Buffer:
    """A register with a vector."""
    made = registers(1, lanes, dtype)
    put(made, value, index(0), lanes)
    return made


def scratch(size: Size, dtype: str = "float32") -> tirx.Buffer:
    """Memory for `size` numbers, one for each thread if allocated inside a shared loop."""
    return build.alloc_buffer((index(size),), dtype, scope="global")


def spread(numbers: Size) -> Size:
    """`size` rounded up to an odd number of cache lines, so that planes are spread over all sets of a cache."""
    lines = -(-numbers // 16)
    return (lines | 1 if is_number(lines) else lines + 1 - lines % 2) * 16


def cleared(count: int, lanes: int, dtype: str = "float32") -> tirx.Buffer:
    """Registers of zeros."""
    made = registers(count, lanes, dtype)
    with loop(count, "unroll") as number:
        put(made, zeros(lanes, dtype), number * index(lanes), lanes)
    return made


def put(buffer: tirx.Buffer, value: tirx.Expr, start: tirx.Expr, lanes: int) -> None:
    """Store a vector to a flat buffer."""
    build.buffer_store(buffer, value, [build.ramp(start, index(1), lanes) if lanes > 1 else start])


def prefetch(buffer: tirx.Buffer, place: tirx.Expr, *, to_write: bool = False, second: bool = False) -> None:
    """Prefetch the cache line of an element, to read or to write it; it may be beyond the end.

    It comes to the first-level cache, or the `second`.
    """
    how = [tirx.const(number, "int32") for number in (int(to_write), 2 if second else 3, 1)]  # 1: data
    build.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(buffer[place]), *how))


def zeros(lanes: int, dtype: str = "float32") -> tirx.Expr:
    """A vector of zeros."""
    return broadcast(tirx.const(0, dtype), lanes)


Step = Callable[[Any, int], None]
"""A function that adds the products of one term to the accumulators; its second argument is the term's number."""

Walk = Callable[[Size, Step], None]
"""Calls a step for each of a number of terms."""


def terms_of_turn(sums: int) -> int:
    """The fewest terms to unroll for so many numbers of sums."""
    return next(n for n in (1, 2, UNROLL) if n == UNROLL or n * sums >= ENOUGH_SUMS)


def in_turn(terms: Size, step: Step, unroll: int = UNROLL) -> None:
    """A loop over `terms` terms, unrolled."""
    whole = terms - terms % unroll
    if not is_number(terms) or terms >= unroll:
        with loop(terms // unroll) as outer:
            for inner in range(unroll):
                step(outer * index(unroll) + index(inner), inner)
    if is_number(terms):
        for term in range(terms - terms % unroll, terms):
            step(index(term), term)
    else:
        with loop(terms % unroll) as inner:
            step(index(whole) + inner, 0)


def product_tile(
    rows: int,
    vectors: int,
    terms: Size,
    isa: Isa,
    factor: Callable[[tirx.Expr, Any], tirx.Expr | Sequence[tirx.Expr]],
    loaded: Callable[[int, Any], tirx.Expr | Sequence[tirx.Expr]],
    walk: Walk = in_turn,
    begin: Callable[[tirx.Expr, int], tirx.Expr] | None = None,
    kind: Term = FLOATS,
) -> Sequence[tirx.Buffer]:
    """Accumulate `rows` × `vectors` vectors over `terms`: one buffer per column of vectors, row by row.

    `factor(row, term)` is a number of the kind of terms, `loaded(column, term)` a vector, for each term that
    `walk(terms, step)` calls `step` with. Few accumulators are kept several times, for terms in turn, because the next
    sum has to wait for the last. `begin(row, column)` is the vector to which the products are added, by default of
    zeros.
    """
    chains = 1
    most = isa.registers - HELD_TERMS  # LLVM loads the vectors of several terms at once, and would store sums for them
    few = min(7, most // 2)
    while chains < UNROLL and rows * vectors * chains <= few and typical(terms) >= 4 * UNROLL:
        chains *= 2
    lanes = isa.lanes
    sums = [[registers(rows, lanes, kind.sums) for _ in range(vectors)] for _ in range(chains)]
    with loop(rows, "unroll") as row:
        for chain in sums:
            for column, buffer in enumerate(chain):
                first = zeros(lanes, kind.sums) if begin is None or chain is not sums[0] else begin(row, column)
                put(buffer, first, row * index(lanes), lanes)

    def step(term: Any, number: int) -> None:
        # Broadcasts outside and vectors inside: the other order keeps all broadcasts live and spills.
        with loop(rows, "unroll") as row:
            one = factor(row, term)
            for column, buffer in enumerate(sums[number % chains]):
                place = row * index(lanes)
                total = vector(buffer, place, lanes)
                put(buffer, kind.add(total, one, loaded(column, term)), place, lanes)

    walk(terms, step)
    for chain in sums[1:]:
        for buffer, more in zip(sums[0], chain, strict=True):
            with loop(rows, "unroll") as row:
                place = row * index(lanes)
                put(buffer, vector(buffer, place, lanes) + vector(more, place, lanes), place, lanes)
    return sums[0]


def either_run(tiles: Sequence[Run], tile: tirx.Expr, body: Callable[[Run], None]) -> None:
    """Write `body(run)` for the run that contains the tile of this number."""
    if len(tiles) == 1:
        body(tiles[0])
    else:
        either(tile < index(tiles[1].first), lambda: body(tiles[0]), lambda: either_run(tiles[1:], tile, body))


def start_of(run: Run, tile: tirx.Expr) -> tirx.Expr:
    """The start of tile number `number`, which is in the run."""
    start = index(run.start) + (tile - index(run.first)) * index(run.size)
    start = start if run.last is None else tirx.min(start, index(run.last))
    return start if is_number(run.start) and run.last is None else bound(start)


def bound(value: tirx.Expr) -> tirx.Expr:
    """An index computed once, as a variable that TVM does not replace by its value.

    Sizes that are known only at run time make indices long, and each of hundreds of accesses is simplified apart. LLVM
    keeps the variable in a register.
    """
    if isinstance(value, tirx.Var | tirx.IntImm):
        return value
    held = build.alloc_buffer((1,), "int64", scope="global")
    build.buffer_store(held, value, [index(0)])
    return build.bind(held[index(0)])


def split(axis: Axis, place: tirx.Expr) -> list[tuple[int, tirx.Expr]]:
    """The values of an axis's loops at a place of it.

    Divisions by sizes that are known only at run time are done once: TVM does not combine their results in an index,
    and LLVM repeats them for each vector.
    """
    values = axis.split(place)
    return values if all(map(is_number, axis.extents[1:])) else [(number, bound(value)) for number, value in values]


def shares(work: Size, tasks: Size, tiles: Size) -> Size:
    """The number of parts of the tiles of each of `tasks` tasks, enough for the threads of any machine."""
    return 1 if typical(work) < PARALLEL_WORK else larger(1, smaller(tiles, -(-TASKS // tasks)))


UNEVEN = 0.5
"""The weight of the time that one of two threads waits for the other."""

UNSHARED = 0.015
"""The accepted slowdown for each task that many threads lack."""


def sharing(work: Size, tasks: Size) -> float:
    """Modelled time of work that threads share in so many tasks of equal size, over that in many."""
    if typical(work) < PARALLEL_WORK:
        return 1.0
    tasks = max(1, typical(tasks))
    uneven = (tasks + tasks % 2) / tasks - 1
    return 1.0 + UNEVEN * uneven + UNSHARED * max(0.0, TASKS / tasks - 1)


class Part(NamedTuple):
    """One of `parts` parts that work is divided into, by its number."""

    number: tirx.Expr
    parts: Size


def share(part: tirx.Expr, parts: Size, tiles: Size) -> tuple[tirx.Expr, tirx.Expr]:
    """The range of tiles of a part: start and end."""
    start, end = (tirx.floordiv(number * index(tiles), index(parts)) for number in (part, part + index(1)))
    return start, end


@contextmanager
def share_loop(part: tirx.Expr, parts: Size, tiles: Size) -> Iterator[tirx.Expr]:
    """A loop over the tiles of a part."""
    if is_one(parts) or (is_number(parts) and is_number(tiles) and parts == tiles):
        with loop(tiles if is_one(parts) else 1) as tile:
            yield tile if is_one(parts) else part
        return
    with serial(*share(part, parts, tiles)) as tile:
        yield tile


def serial(start: tirx.Expr, end: tirx.Expr) -> AbstractContextManager[tirx.Expr]:
    """A loop between two places, which are computed once: TVM repeats the first in every index of the loop."""
    return build.serial(bound(start), bound(end))  # type: ignore[no-any-return]


def unpacked(task: tirx.Expr, extents: Sequence[Size]) -> list[tirx.Expr]:
    """A task's number as indices below `extents`; the last one changes fastest."""
    values: list[tirx.Expr] = []
    for place, extent in reversed(list(enumerate(extents))):
        if is_one(extent):
            values.append(index(0))
            continue
        last = all(is_one(e) for e in extents[:place])
        values.append(task if last else tirx.floormod(task, index(extent)))
        task = tirx.floordiv(task, index(extent))
    if not all(map(is_number, extents)):
        values = [bound(value) for value in values]
    return values[::-1]
