"""A kernel read as a matrix product: which side gives numbers, which vectors, and what these are computed from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.generate.epilogue import reads_in_epilogue
from heterocc.compiler.lower.cpu.generate.places import Axis, Linear, offset
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import moves, typical
from heterocc.compiler.lower.kernels.expressions import dtype_of, is_conditional, is_zero, loads, nodes

ROWS_A_VALUE = 16
"""Rows that a computed panel serves at least."""


@dataclass(frozen=True, slots=True)
class Side:
    """A factor: its load, its place in memory as a linear form of the loops, and its argument if it is a weight.

    A factor that is computed from others is `value`, an expression of the loops; `load` is then the largest of them.
    """

    load: TensorLoad
    form: Linear
    weight: int | None
    value: tirx.Expr | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """out[outer, row, column] = Σ over terms of numbers[outer, row, term] · vectors[outer, term, column]."""

    outer: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    terms: Axis
    numbers: Side
    vectors: Side

    @property
    def work(self) -> int:
        """Multiply-adds."""
        return math.prod(a.length for a in (*self.outer, self.rows, self.columns, self.terms))


def find_product(kernel: Kernel) -> Product | None:
    """Read a kernel as a matrix product."""
    sides = [_side(kernel, load) for load in (kernel.left, kernel.right)]
    if (
        sides[0] is None
        or sides[1] is None
        or kernel.argument(sides[0].load.source) == kernel.argument(sides[1].load.source)
    ):
        return None
    places = [i for i in kernel.places if kernel.extents[i] > 1]
    terms = [i for i in kernel.terms if kernel.extents[i] > 1]
    moving = [[moves(side.form.steps[i]) for side in sides if side is not None] for i in range(len(kernel.loops))]
    if any(moving[i] == [False, False] for i in places) or any(moving[i] != [True, True] for i in terms):
        return None
    along = next((i for i in reversed(places) if moving[i] != [True, True]), None)
    if along is None or (places and places[-1] != along):
        return None
    right = moving[along][1]
    numbers, vectors = (sides[0], sides[1]) if right else (sides[1], sides[0])
    assert numbers is not None and vectors is not None
    written = offset([kernel.loops[i] for i in kernel.places], kernel.sum_, kernel.loops)
    assert written is not None
    only_vectors = [i for i in places if moving[i] == moving[along]]
    only_numbers = [i for i in places if moving[i] not in (moving[along], [True, True])]
    columns = kernel.last_run(only_vectors, [vectors.form, written])
    rows = kernel.last_run(only_numbers, [numbers.form])
    if len(rows.loops) < len(only_numbers):
        # In the order of the numbers in memory, all rows may be one axis, and each tile of rows full.
        rows = max(rows, kernel.last_run(by_step(only_numbers, numbers.form), [numbers.form]), key=_loops)
    summed = kernel.axis(terms)
    if any(s.weight is None and summed.step(s.form) is None for s in (numbers, vectors)):
        summed = kernel.axis(by_step(terms, numbers.form if numbers.weight is None else vectors.form))
    if any(s.weight is None and summed.step(s.form) is None for s in (numbers, vectors)):
        return None
    outer = tuple(kernel.axis([i]) for i in places if i not in (*columns.loops, *rows.loops))
    product = Product(outer, rows, columns, summed, numbers, vectors)
    if not _can_compute(kernel, product):
        return None
    return product if columns.step(written) == 1 and _worth_it(product) else None


def by_step(loops: Sequence[int], form: Linear) -> list[int]:
    """Loops in the order in which they step through memory, the largest steps first."""
    return sorted(loops, key=lambda n: -abs(typical(form.steps[n])))


def _loops(axis: Axis) -> int:
    return len(axis.loops)


def _can_compute(kernel: Kernel, product: Product) -> bool:
    """Whether what factors are computed from can be read along rows or columns, and terms.

    Numbers are computed anew for each panel of columns, which is only done for casts to other types than float32.
    """
    computed = product.numbers.value
    if computed is not None and (kernel.dtype == "float32" or not isinstance(computed, tirx.Cast)):
        return False
    for side, along in ((product.numbers, product.rows), (product.vectors, product.columns)):
        reads = [] if side.value is None else loads(side.value)
        forms = [offset(r.indices, r.source, kernel.loops) for r in reads]
        if any(f is None or None in (a.step(f) for a in (along, product.terms)) for f in forms):
            return False
    return True


def _worth_it(product: Product) -> bool:
    """Whether vectors lie in a row, are packed, or serve enough rows that copying or computing them pays."""
    if product.vectors.value is not None:
        return typical(product.rows.length) >= ROWS_A_VALUE
    return (
        product.vectors.weight is not None
        or product.columns.step(product.vectors.form) == 1
        or typical(product.rows.length) >= 8
    )


def _side(kernel: Kernel, load: TensorLoad) -> Side | None:
    """A factor read from an argument; a weight if it is one, only read here, and each axis is a loop of its own."""
    load = kernel.through_copies(load)
    if kernel.argument(load.source) is None:
        return _computed(kernel, load)
    argument = kernel.argument(load.source)
    form = offset(load.indices, load.source, kernel.loops)
    if argument is None or form is None:
        return None
    weight = argument in kernel.weights and not reads_in_epilogue(kernel, load.source)
    weight = weight and all(kernel.loop_of(i) is not None or is_zero(i) for i in load.indices)
    return Side(load, form, argument if weight else None)


def _computed(kernel: Kernel, load: TensorLoad) -> Side | None:
    """A factor that a stage before computes from arguments, element by element."""
    value = kernel.inlined(load)
    if any(is_conditional(n) for n in nodes(value)) or dtype_of(value) != kernel.dtype:
        return None
    reads = [(r, offset(r.indices, r.source, kernel.loops)) for r in loads(value)]
    if any(form is None or kernel.argument(r.source) is None for r, form in reads):
        return None
    largest = max(reads, key=lambda read: sum(typical(s) != 0 for s in read[1].steps) if read[1] else 0, default=None)
    if largest is None or largest[1] is None:
        return None
    return Side(largest[0], largest[1], None, value)
