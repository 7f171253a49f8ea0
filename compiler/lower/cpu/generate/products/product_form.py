"""A kernel read as a matrix product: which side gives numbers, and which vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.generate.epilogue import reads_in_epilogue
from heterocc.compiler.lower.cpu.generate.places import Axis, Linear, offset
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import Size, is_one, moves, typical
from heterocc.compiler.lower.kernels.expressions import is_zero


@dataclass(frozen=True, slots=True)
class Side:
    """A factor: its load, its place in memory as a linear form of the loops, and its argument if it is a weight."""

    load: TensorLoad
    form: Linear
    weight: int | None


@dataclass(frozen=True, slots=True)
class Product:
    """out[outer, row, column] = Σ over segments and terms of numbers[outer, row, segment, term] · vectors[outer,
    segment, term, column]. Segments are loops that are not one axis with the terms."""

    outer: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    terms: Axis
    numbers: Side
    vectors: Side
    segments: tuple[Axis, ...] = ()

    @property
    def work(self) -> Size:
        """Multiply-adds."""
        return math.prod(a.length for a in (*self.outer, self.rows, self.columns)) * self.summed

    @property
    def summed(self) -> Size:
        """Terms of all segments."""
        return math.prod(a.length for a in (*self.segments, self.terms))


def find_product(kernel: Kernel, *, by_weight: bool = False) -> Product | None:
    """Read a kernel as a matrix product.

    One `by_weight` has numbers of the left factor and vectors of the right one, a weight for all rows. Its terms lie in
    a row, and may be in segments.
    """
    left, right = (_side(kernel, load) for load in (kernel.left, kernel.right))
    if left is None or right is None or kernel.argument(left.load.source) == kernel.argument(right.load.source):
        return None
    places = [i for i in kernel.places if not is_one(kernel.extents[i])]
    terms = [i for i in kernel.terms if not is_one(kernel.extents[i])]
    moving = [[moves(side.form.steps[i]) for side in (left, right)] for i in range(len(kernel.loops))]
    if any(moving[i] == [False, False] for i in places) or any(moving[i] != [True, True] for i in terms):
        return None
    along = next((i for i in reversed(places) if moving[i] != [True, True]), None)
    if not by_weight and (along is None or (places and places[-1] != along)):
        return None
    moves_right = by_weight or along is None or moving[along][1]
    numbers, vectors = (left, right) if moves_right else (right, left)
    written = offset([kernel.loops[i] for i in kernel.places], kernel.sum_, kernel.loops)
    assert written is not None
    only_vectors = [i for i in places if moving[i] == [not moves_right, moves_right]]
    only_numbers = [i for i in places if moving[i] == [moves_right, not moves_right]]
    columns = kernel.last_run(only_vectors, [vectors.form, written])
    rows = kernel.last_run(only_numbers, [numbers.form])
    if len(rows.loops) < len(only_numbers):
        # In the order of the numbers in memory, all rows may be one axis, and each tile of rows full.
        in_memory = kernel.last_run(by_step(only_numbers, numbers.form), [numbers.form])
        rows = max(rows, in_memory, key=lambda axis: len(axis.loops))
    others = [i for i in places if i not in (*columns.loops, *rows.loops)]
    outer = tuple(kernel.axis([i]) for i in others)
    if by_weight:
        inner = kernel.last_run(terms, [numbers.form])
        inner = inner if is_one(inner.step(numbers.form)) else kernel.axis([])
        segments = tuple(kernel.axis([i]) for i in terms if i not in inner.loops)
        shared = vectors.weight is not None and not any(moving[i][1] for i in others)
        beside = not only_vectors or is_one(columns.step(written))
        return Product(outer, rows, columns, inner, numbers, vectors, segments) if shared and beside else None
    summed = kernel.axis(terms)
    if any(s.weight is None and summed.step(s.form) is None for s in (numbers, vectors)):
        summed = kernel.axis(by_step(terms, numbers.form if numbers.weight is None else vectors.form))
    if any(s.weight is None and summed.step(s.form) is None for s in (numbers, vectors)):
        return None
    product = Product(outer, rows, columns, summed, numbers, vectors)
    return product if is_one(columns.step(written)) and _worth_it(product) else None


def by_step(loops: Sequence[int], form: Linear) -> list[int]:
    """Loops in the order in which they step through memory, the largest steps first."""
    return sorted(loops, key=lambda n: -abs(typical(form.steps[n])))


def _worth_it(product: Product) -> bool:
    """Whether vectors lie in a row, are packed, or serve enough rows that copying them pays."""
    return (
        product.vectors.weight is not None
        or is_one(product.columns.step(product.vectors.form))
        or typical(product.rows.length) >= 8
    )


def _side(kernel: Kernel, load: TensorLoad) -> Side | None:
    """A factor read from an argument; a weight if it is one, only read here, and each axis is a loop of its own."""
    load = kernel.through_copies(load)
    argument = kernel.argument(load.source)
    form = offset(load.indices, load.source, kernel.loops)
    if argument is None or form is None:
        return None
    weight = argument in kernel.weights and not reads_in_epilogue(kernel, load.source)
    weight = weight and all(kernel.loop_of(i) is not None or is_zero(i) for i in load.indices)
    return Side(load, form, argument if weight else None)
