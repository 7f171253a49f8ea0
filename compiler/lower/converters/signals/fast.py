"""Fourier transforms whose length only a run knows, in time that grows as n · log n for every length n.

A length that is a power of two is halved again and again. Bluestein's algorithm makes a transform of another length a
convolution with a chirp, exp(i·π·j²/n), which is a product of transforms whose length is a power of two. Source:
L. Bluestein, "A linear filtering approach to the computation of discrete Fourier transform", 1970. All of it is in
float64, so that a result has the error of its dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.checked import asserted
from heterocc.compiler.lower.converters.computed.numbers import elements, loop, statements, whole, within_limit
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.sized import emit_sized

Buffers = Sequence[tirx.Buffer]
Sizes = Sequence[tirx.Expr]
Pair = tuple[tirx.Expr, tirx.Expr]

MOST_POINTS = 1 << 22
"""The longest transform: it takes 176 bytes for each point."""
MOST_RESULTS = 1 << 26
"""The most numbers of all results, half a minute at most. One request must not occupy a service for longer."""

_SCRATCH = 22
"""Numbers beside the results for each point of a transform; see `_Workspace`."""
_DOUBLINGS = 40
"""As many as any length needs."""


@dataclass(frozen=True, slots=True)
class Transforms:
    """Transforms of one length. Sizes are those of the results, as numbers of the kernel.

    `place(sizes, row, k)` gives the place among the results, and the number in its row, where the real part of number k
    of a row is; the imaginary part follows it.
    """

    tensors: Sequence[relax.Expr]
    demands: Callable[[Buffers, Sizes], list[tuple[tirx.Expr, str]]]
    length: Callable[[Buffers], tirx.Expr]
    rows: Callable[[Buffers, Sizes], tirx.Expr]
    taken: Callable[[Buffers], tirx.Expr]
    """How many numbers of a row are read; others are 0."""
    results: Callable[[Buffers, Sizes], tirx.Expr]
    read: Callable[[Buffers, Sizes, tirx.Expr, tirx.Expr], Pair]
    place: Callable[[Buffers, Sizes, tirx.Expr, tirx.Expr], tirx.Expr]
    most: Callable[[Sizes], tirx.Expr]
    """At least the length, by the sizes of the results alone."""
    inverse: bool
    real: bool
    """Whether results have no imaginary parts."""


def computed(ctx: Context, transforms: Transforms, dtype: str) -> relax.Expr:
    """The results of transforms, in the node's dimensions."""
    shape = list(ctx.result())
    room = transforms.most([_number(d) for d in shape]) * whole(_SCRATCH)
    total = whole(1)
    for dim in shape:
        total = total * _number(dim)

    def compute(given: list[te.Tensor], sizes: list[tirx.Expr], dims: list[tirx.Expr]) -> te.Tensor:
        return statements(given, dims, lambda i, o: _write(ctx, transforms, i, sizes, o[0]), "transforms", "float64")

    found = emit_sized(ctx.bb, compute, transforms.tensors, shape, [total + room], "float64", "transforms", opaque=True)

    def at(tensors: list[te.Tensor], sizes: list[tirx.Expr], index: list[tirx.Expr]) -> tirx.Expr:
        return tensors[0](ravelled(index, sizes)).astype(dtype)

    return elements(ctx, [found], at, dtype, "transformed")


def _number(dim: tirx.Expr | int) -> tirx.Expr:
    return whole(dim) if isinstance(dim, int) else dim.astype("int64")


def ravelled(index: Sizes, sizes: Sizes) -> tirx.Expr:
    """The place of an element in row-major order."""
    place = whole(0)
    for i, size in zip(index, sizes, strict=True):
        place = place * size.astype("int64") + i
    return place


class _Workspace:
    """The kernel's tensor: the results, and from `start` on complex numbers.

    With m numbers of a row, m of the transformed chirp, m / 2 roots of unity, and n of the chirp. m is the length n if
    this is a power of two, and then the chirp is 1; else the power of two from 2n - 1 on, which is below 4n.
    """

    def __init__(self, buffer: tirx.Buffer, start: tirx.Expr, length: tirx.Expr) -> None:
        self.buffer, self.length = buffer, length
        self.state = tirx.decl_buffer((3,), "int64", "padded")
        self.held = tirx.decl_buffer((4,), "float64", "held")
        self.padded, self.levels, self.reversed = (self.state[whole(n)] for n in range(3))
        self.is_direct = self.padded == length
        self.row = start
        self.chirps = start + self.padded * whole(2)
        self.roots = start + self.padded * whole(4)
        self.chirp = start + self.padded * whole(5)

    def at(self, start: tirx.Expr, place: tirx.Expr) -> Pair:
        spot = start + place * whole(2)
        return self.buffer[spot], self.buffer[spot + whole(1)]

    def store(self, start: tirx.Expr, place: tirx.Expr, pair: Pair) -> list[tirx.Stmt]:
        spot = start + place * whole(2)
        return [tirx.BufferStore(self.buffer, v, [spot + whole(n)]) for n, v in enumerate(pair)]

    def hold(self, *values: tirx.Expr) -> list[tirx.Stmt]:
        return [tirx.BufferStore(self.held, v, [whole(n)]) for n, v in enumerate(values)]

    def pad(self) -> list[tirx.Stmt]:
        """Find m and its logarithm."""
        n = self.length
        needed = tirx.Select(tirx.bitwise_and(n, n - whole(1)) == whole(0), n, n * whole(2) - whole(1))
        doubled = tirx.SeqStmt([self._set(0, self.padded * whole(2)), self._set(1, self.levels + whole(1))])
        grow = loop(whole(_DOUBLINGS), lambda _: tirx.IfThenElse(self.padded < needed, doubled, None))
        return [self._set(0, whole(1)), self._set(1, whole(0)), grow]

    def _set(self, number: int, value: tirx.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.state, value, [whole(number)])

    def result(self, k: tirx.Expr) -> tuple[tirx.Stmt, Pair]:
        """A number of the transformed row, after a statement."""

        def turn(n: tirx.Var) -> tirx.Stmt:
            return self._set(2, self.reversed * whole(2) + tirx.bitwise_and(tirx.shift_right(k, n), whole(1)))

        turned = loop(self.levels, turn)
        found = tirx.IfThenElse(self.is_direct, tirx.SeqStmt([self._set(2, whole(0)), turned]), self._set(2, k))
        return found, self.at(self.row, self.reversed)

    def transform(self, start: tirx.Expr, *, back: bool) -> tirx.Stmt:
        """Transform m numbers in place: forth, to places with reversed bits, or back from these, times m."""

        def level(number: tirx.Var) -> tirx.Stmt:
            shift = self.levels - whole(1) - number if back else number
            half = tirx.shift_right(self.padded, shift + whole(1))

            def pair(p: tirx.Var) -> tirx.Stmt:
                j = tirx.bitwise_and(p, half - whole(1))
                first = whole(2) * p - j
                one, other = self.at(start, first), self.at(start, first + half)
                cos, sin = self.at(self.roots, tirx.shift_left(j, shift))
                held = [self.held[whole(n)] for n in range(4)]
                if back:
                    turned = (other[0] * cos + other[1] * sin, other[1] * cos - other[0] * sin)
                    lines = self.hold(*one, *turned)
                    last = (held[0] - held[2], held[1] - held[3])
                else:
                    lines = self.hold(*one, *other)
                    real, imaginary = held[0] - held[2], held[1] - held[3]
                    last = (real * cos - imaginary * sin, real * sin + imaginary * cos)
                lines += self.store(start, first, (held[0] + held[2], held[1] + held[3]))
                return tirx.SeqStmt(lines + self.store(start, first + half, last))

            return loop(tirx.shift_right(self.padded, whole(1)), pair)

        return loop(self.levels, level)

    def prepare(self, inverse: bool) -> list[tirx.Stmt]:
        """Fill the roots, the chirp, and its transform divided by m."""
        n, m = self.length, self.padded
        turn = tirx.const(-2 * math.pi, "float64")
        if inverse:
            turn = tirx.Select(self.is_direct, tirx.const(2 * math.pi, "float64"), turn)
        one, zero = tirx.const(1.0, "float64"), tirx.const(0.0, "float64")

        def root(j: tirx.Var) -> tirx.Stmt:
            angle = turn * (j.astype("float64") / m.astype("float64"))
            return tirx.SeqStmt(self.store(self.roots, j, (tirx.cos(angle), tirx.sin(angle))))

        def chirp(j: tirx.Var) -> tirx.Stmt:
            # The remainder keeps angles small, and thereby exact.
            turns = tirx.floormod(j * j, n * whole(2)).astype("float64") / n.astype("float64")
            angle = tirx.const(math.pi * (-1 if inverse else 1), "float64") * turns
            angle = tirx.Select(self.is_direct, zero, angle)
            lines = self.store(self.chirp, j, (tirx.cos(angle), tirx.sin(angle)))
            scaled = tuple(v * (one / m.astype("float64")) for v in self.at(self.chirp, j))
            mirrored = tirx.floormod(m - j, m)
            for place in (j, mirrored):
                lines += self.store(self.chirps, place, (scaled[0], scaled[1]))
            return tirx.SeqStmt(lines)

        cleared = loop(m, lambda j: tirx.SeqStmt(self.store(self.chirps, j, (zero, zero))))
        roots = loop(tirx.shift_right(m, whole(1)), root)
        forth = tirx.IfThenElse(self.is_direct, tirx.Evaluate(0), self.transform(self.chirps, back=False))
        return [roots, cleared, loop(n, chirp), forth]

    def transformed(self) -> list[tirx.Stmt]:
        """Transform the row, or replace it by its convolution with the chirp."""

        def times(j: tirx.Var) -> tirx.Stmt:
            (a, b), (c, d) = self.at(self.row, j), self.at(self.chirps, j)
            held = [self.held[whole(n)] for n in range(2)]
            lines = self.hold(a * c - b * d, a * d + b * c)
            return tirx.SeqStmt(lines + self.store(self.row, j, (held[0], held[1])))

        forth, back = (self.transform(self.row, back=b) for b in (False, True))
        rest = tirx.SeqStmt([loop(self.padded, times), back])
        return [forth, tirx.IfThenElse(self.is_direct, tirx.Evaluate(0), rest)]


def _write(ctx: Context, transforms: Transforms, ins: Buffers, sizes: Sizes, out: tirx.Buffer) -> tirx.Stmt:
    length = transforms.length(ins)
    total = whole(1)
    for size in sizes:
        total = total * size.astype("int64")
    space = _Workspace(out, total, length)
    zero = tirx.const(0.0, "float64")

    def transformed(row: tirx.Var) -> tirx.Stmt:
        def load(j: tirx.Var) -> tirx.Stmt:
            (a, b), (c, d) = transforms.read(ins, sizes, row, j), space.at(space.chirp, j)
            a, b = a.astype("float64"), b.astype("float64")
            return tirx.SeqStmt(space.store(space.row, j, (a * c + b * d, b * c - a * d)))

        def give(k: tirx.Var) -> tirx.Stmt:
            find, (a, b) = space.result(k)
            c, d = space.at(space.chirp, k)
            scale = tirx.const(1.0, "float64") / (length.astype("float64") if transforms.inverse else 1.0)
            pair = ((a * c + b * d) * scale, (b * c - a * d) * scale)
            place = transforms.place(ins, sizes, row, k)
            parts = pair[:1] if transforms.real else pair
            return tirx.SeqStmt([find, *(tirx.BufferStore(out, v, [place + whole(n)]) for n, v in enumerate(parts))])

        cleared = loop(space.padded, lambda j: tirx.SeqStmt(space.store(space.row, j, (zero, zero))))
        read = loop(tirx.min(transforms.taken(ins), length), load)
        return tirx.SeqStmt([cleared, read, *space.transformed(), loop(transforms.results(ins, sizes), give)])

    demands = [
        *transforms.demands(ins, sizes),
        (length <= whole(MOST_POINTS), f"it is longer than {MOST_POINTS} points, the limit"),
        (within_limit(sizes, MOST_RESULTS), f"it would have more than {MOST_RESULTS} results, the limit"),
    ]
    lines = [tirx.AllocBuffer(space.state), tirx.AllocBuffer(space.held)]
    lines += [asserted(ctx, *demand) for demand in demands]
    lines += [*space.pad(), *space.prepare(transforms.inverse), loop(transforms.rows(ins, sizes), transformed)]
    return tirx.SeqStmt(lines)
