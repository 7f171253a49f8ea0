"""Analysis of kernels that slide a window over planes: depthwise convolution and pooling, with padding and epilogue.

Each output is reduced from the taps of a window in one channel, each with at most one factor. Neighbouring outputs
read mostly the same elements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.ir import TensorLoad
from tvm.s_tir.dlight.analysis import normalize_prim_func

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.plain import branches
from heterocc.compiler.lower.gpu.reduction.accumulate import Accumulator, UnknownFormError, accumulator_of
from heterocc.compiler.lower.gpu.reduction.row_form import inline
from heterocc.compiler.lower.kernels.expressions import dtype_of, loads, substituted, uses

_REDUCED = int(tirx.IterVar.CommReduce)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two directions of a plane: `size` outputs from windows of `taps` elements.

    `stride` is the distance of windows, `dilation` that of taps. Element `i` of the padded plane is element
    `i - before` of the source, which has `extent` elements.
    """

    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    extent: int

    @property
    def window(self) -> int:
        """The number of elements from the first tap to the last."""
        return (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True, slots=True)
class Windows:
    """A kernel of windows with `sides[0].size` × `sides[1].size` outputs for each of the `planes`.

    `iterators` are those of the reduction block, `output_iterators` those of the output block: of planes, then of the
    two sides. `taps` are the reduction's iterators. `load` is the sliding load in its term; it reads `source`, whose
    indices other than the sides are `place`. `border` is the value of the padding, None without padding.
    """

    planes: tuple[int, ...]
    sides: tuple[Side, Side]
    accumulator: Accumulator
    iterators: tuple[tirx.Var, ...]
    taps: tuple[tirx.Var, tirx.Var]
    units: tuple[tirx.Var, ...]
    load: TensorLoad
    source: tirx.Buffer
    place: tuple[tirx.Expr, ...]
    border: tirx.Expr | None
    output: tirx.BufferStore | None
    output_iterators: tuple[tirx.Var, ...]

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return prod(self.planes) * self.sides[0].size * self.sides[1].size

    @property
    def steps(self) -> int:
        """The number of taps of a window."""
        return self.sides[0].taps * self.sides[1].taps

    def source_at(self, plane: Sequence[tirx.Expr], row: tirx.Expr, column: tirx.Expr) -> TensorLoad:
        """The element of the source at a row and column of the plane, without padding."""
        values = [*zip(self.iterators, plane, strict=False), *((u, nest.index(0)) for u in self.units)]
        return self.source[(*(substituted(i, values) for i in self.place), row, column)]

    def term(self, plane: Sequence[tirx.Expr], tap: tuple[int, int], element: tirx.Expr) -> tirx.Expr:
        """The term of a tap for the loaded `element`."""
        values = [*zip(self.iterators, plane, strict=False), *((u, nest.index(0)) for u in self.units)]
        values += [(var, nest.index(at)) for var, at in zip(self.taps, tap, strict=True)]

        def load(node: TensorLoad) -> TensorLoad:
            return element if node.source.same_as(self.load.source) else node

        return substituted(self.accumulator.terms[0], values, load)

    def store(
        self, plane: Sequence[tirx.Expr], row: tirx.Expr, column: tirx.Expr, result: tirx.Expr
    ) -> tirx.BufferStore:
        """The store of an output whose accumulated value is `result`."""
        kept = self.accumulator.targets[0][0]
        result = result.astype(dtype_of(kept))  # narrow floats are accumulated in wider ones
        if self.output is None:
            buffer, indices = self.accumulator.targets[0]
            values = list(zip(self.iterators, [*plane, row, column], strict=True))
            values += ((u, nest.index(0)) for u in self.units)
            return tirx.BufferStore(buffer, result, [substituted(i, values) for i in indices])
        values = list(zip(self.output_iterators, [*plane, row, column], strict=True))

        def load(node: TensorLoad) -> TensorLoad:
            return result if node.source.same_as(kept) else node

        store = self.output
        place = [substituted(i, values) for i in store.indices]
        return tirx.BufferStore(store.buffer, substituted(store.value, values, load), place)


def windows_of(function: tirx.PrimFunc) -> Windows | None:
    """The kernel as windows over planes; None if it has another form or a shape that is not constant."""
    schedule = s_tir.Schedule(function)
    blocks = normalize_prim_func(schedule)
    if blocks is None or sum("R" in b.dom_kind() for b in blocks) != 1:
        return None
    if any(not isinstance(extent, int) or extent == 0 for b in blocks for extent in b.dom()):
        return None
    place = next(i for i, b in enumerate(blocks) if "R" in b.dom_kind())
    for index, info in enumerate(blocks):
        if index > place or (index < place and not branches(schedule, info)):
            inline(schedule, info.block_rv)
    left = [schedule.get(b) for b in schedule.get_child_blocks(schedule.get_sblock("root"))]
    reduced = next(i for i, b in enumerate(left) if any(int(v.iter_type) == _REDUCED for v in b.iter_vars))
    after = left[reduced + 1 :]
    if reduced > 1 or len(after) > 1:
        return None
    try:
        return _windows(tuple(function.params), left[:reduced], left[reduced], after[0] if after else None)
    except UnknownFormError:
        return None


def _windows(
    params: tuple[tirx.Buffer, ...], before: list[s_tir.SBlock], block: s_tir.SBlock, after: s_tir.SBlock | None
) -> Windows:
    accumulator = accumulator_of(block)
    if len(accumulator.targets) != 1:
        raise UnknownFormError(block.name_hint)
    units = tuple(v.var for v in block.iter_vars if int(v.dom.extent) == 1)
    spatial = [v for v in block.iter_vars if int(v.iter_type) != _REDUCED and int(v.dom.extent) > 1]
    taps = [v for v in block.iter_vars if int(v.iter_type) == _REDUCED and int(v.dom.extent) > 1]
    load = _sliding(accumulator.terms[0], taps)
    none = [(u, nest.index(0)) for u in units]
    slid = [substituted(i, none) for i in load.indices[-2:]]
    slots = [[v for v in spatial if uses(i, v.var)] for i in slid]
    tapped = [[v for v in taps if uses(i, v.var)] for i in slid]
    if any(len(found) > 1 for found in [*slots, *tapped]) or sum(map(len, tapped)) != len(taps):
        raise UnknownFormError("not a window over two sides")
    bare = [_side(i, v, t) for i, v, t in zip(slid, slots, tapped, strict=True)]
    sliding = [v for found in slots for v in found]
    planes = [v for v in spatial if not any(v.var.same_as(w.var) for w in sliding)]
    moving = [v.var for v in [*sliding, *taps]]
    place = tuple(load.indices[:-2])
    if any(uses(i, v) for i in place for v in moving):
        raise UnknownFormError("planes that depend on the window")
    others = [n for n in loads(accumulator.terms[0]) if not n.source.same_as(load.source)]
    if any(uses(i, v.var) for other in others for i in other.indices for v in sliding):
        raise UnknownFormError("a factor for each output")
    source, border, sides = _behind_padding(params, before, load, bare)
    unused = tirx.Var("unused", "int64")
    iterators = [v.var for v in planes] + [found[0].var if found else unused for found in slots]
    output, output_iterators = _after(params, after, accumulator, iterators)
    return Windows(
        planes=tuple(int(v.dom.extent) for v in planes),
        sides=(sides[0], sides[1]),
        accumulator=accumulator,
        iterators=tuple(iterators),
        taps=(tapped[0][0].var if tapped[0] else unused, tapped[1][0].var if tapped[1] else unused),
        units=units,
        load=load,
        source=source,
        place=place,
        border=border,
        output=output,
        output_iterators=output_iterators,
    )


def _sliding(term: tirx.Expr, taps: Sequence[tirx.IterVar]) -> TensorLoad:
    """The load that moves with the taps. Loads of factors, which are indexed by the taps alone, are excluded."""
    found = [
        n
        for n in loads(term)
        if len(n.indices) >= 2
        and any(uses(i, t.var) for i in n.indices[-2:] for t in taps)
        and not any(isinstance(i, tirx.Var) and i.same_as(t.var) for i in n.indices for t in taps)
    ]
    if len(found) != 1:
        raise UnknownFormError("no single load of a window")
    return found[0]


def _side(index: tirx.Expr, iterator: Sequence[tirx.IterVar], tap: Sequence[tirx.IterVar]) -> Side:
    """A side of the plane without padding and with an `extent` of 0, which `_behind_padding` determines."""
    stride = _slope(index, iterator[0].var) if iterator else 1
    dilation = _slope(index, tap[0].var) if tap else 1
    zeros = [(v.var, nest.index(0)) for v in [*iterator, *tap]]
    first = sym.Analyzer().simplify(substituted(index, zeros))
    if stride < 1 or dilation < 1 or not isinstance(first, tirx.IntImm) or int(first) < 0:
        raise UnknownFormError("no window")
    size = int(iterator[0].dom.extent) if iterator else 1
    return Side(size, int(tap[0].dom.extent) if tap else 1, stride, dilation, -int(first), 0)


def _behind_padding(
    params: tuple[tirx.Buffer, ...], before: list[s_tir.SBlock], load: TensorLoad, sides: list[Side]
) -> tuple[tirx.Buffer, tirx.Expr | None, list[Side]]:
    """The source before padding, the value of the border (None without padding), and the sides with padding."""
    if not before:
        if not any(load.source.same_as(p) for p in params):
            raise UnknownFormError("a buffer between the blocks")
        sizes = load.source.shape[-2:]
        return load.source, None, [dataclasses.replace(s, extent=int(n)) for s, n in zip(sides, sizes, strict=True)]
    (block,) = before
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not store.buffer.same_as(load.source):
        raise UnknownFormError(block.name_hint)
    value = store.value
    if not isinstance(value, ir.Call) or getattr(value.op, "name", "") != "prim.if_then_else":
        raise UnknownFormError(block.name_hint)
    condition, inner, border = value.args
    if not isinstance(inner, TensorLoad) or not any(inner.source.same_as(p) for p in params):
        raise UnknownFormError(block.name_hint)
    if not isinstance(border, tirx.FloatImm | tirx.IntImm) or len(inner.indices) != len(store.indices):
        raise UnknownFormError(block.name_hint)
    outer = list(zip(inner.indices, store.indices, strict=True))[:-2]
    if any(not tvm_ffi.structural_equal(i, j) for i, j in outer):
        raise UnknownFormError(block.name_hint)
    padded = []
    shifts = []
    for side, index, at, extent in zip(
        sides, inner.indices[-2:], store.indices[-2:], inner.source.shape[-2:], strict=True
    ):
        shift = sym.Analyzer().simplify(at - index)
        if not isinstance(shift, tirx.IntImm):
            raise UnknownFormError(block.name_hint)
        shifts.append(int(shift))
        padded.append(dataclasses.replace(side, before=side.before + int(shift), extent=int(extent)))
    sizes = [
        (int(n), shift, int(m))
        for n, shift, m in zip(store.buffer.shape[-2:], shifts, inner.source.shape[-2:], strict=True)
    ]
    _assert_border(condition, store.indices[-2:], sizes)
    return inner.source, border, padded


def _assert_border(condition: tirx.Expr, indices: list[tirx.Var], sizes: Sequence[tuple[int, int, int]]) -> None:
    """Check that the condition holds exactly inside the source, at both ends and one step beyond.

    `sizes` are, by side, the padded size, the padding before, and the size of the source. Raises UnknownFormError.
    """
    analyzer = sym.Analyzer()
    ends = []
    for padded, shift, extent in sizes:
        points = {0, shift - 1, shift, shift + extent - 1, shift + extent, padded - 1}
        ends.append([(p, 0 <= p - shift < extent) for p in sorted(points) if 0 <= p < padded])
    for y, y_inside in ends[0]:
        for x, x_inside in ends[1]:
            values = [(v, nest.index(at)) for v, at in zip(indices, (y, x), strict=True) if isinstance(v, tirx.Var)]
            holds = analyzer.simplify(substituted(condition, values))
            if not isinstance(holds, tirx.IntImm) or bool(int(holds)) != (y_inside and x_inside):
                raise UnknownFormError("a border of another kind")


def _after(
    params: tuple[tirx.Buffer, ...], block: s_tir.SBlock | None, accumulator: Accumulator, iterators: Sequence[tirx.Var]
) -> tuple[tirx.BufferStore | None, tuple[tirx.Var, ...]]:
    """The output's store and its iterators in the reduction's order; (None, ()) if the reduction is the output."""
    kept, indices = accumulator.targets[0]
    if block is None:
        if not any(kept.same_as(p) for p in params):
            raise UnknownFormError("no output")
        return None, ()
    store = block.body
    reads = [n for n in loads(store.value) if n.source.same_as(kept)]
    if not isinstance(store, tirx.BufferStore) or not any(store.buffer.same_as(p) for p in params) or not reads:
        raise UnknownFormError(block.name_hint)
    if any(
        not tvm_ffi.structural_equal(i, j) for n in reads[1:] for i, j in zip(n.indices, reads[0].indices, strict=True)
    ):
        raise UnknownFormError("an output of two windows")
    found: list[tirx.Var] = [tirx.Var("unused", "int64") for _ in iterators]
    for index, read in zip(indices, reads[0].indices, strict=True):
        place = next((i for i, v in enumerate(iterators) if v.same_as(index)), None)
        if place is None:
            if not isinstance(read, tirx.IntImm):
                raise UnknownFormError("an output of another window")
            continue
        found[place] = read
    named = [v.var for v in block.iter_vars if int(v.dom.extent) > 1]
    used = [v for v in found if isinstance(v, tirx.Var) and any(v.same_as(n) for n in named)]
    if len(used) != len(named) or any(not isinstance(v, tirx.Var) for v in found):
        raise UnknownFormError("an output of another window")
    return store, tuple(found)


def _slope(expr: tirx.Expr, var: tirx.Var) -> int:
    """The coefficient of a variable in an expression. Raises UnknownFormError if it is not linear."""
    after = substituted(expr, [(var, var + nest.index(1))])
    difference = sym.Analyzer().simplify(after - expr)
    if not isinstance(difference, tirx.IntImm):
        raise UnknownFormError("an index that is not linear")
    return int(difference)
