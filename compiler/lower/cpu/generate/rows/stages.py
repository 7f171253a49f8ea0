"""Analysis of kernels of rows: reductions of a row, and maps of its elements and of the reductions' results.

Softmax and normalisations are such kernels. All stages are written in the same loops: those of the largest output, and
those of the reductions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from tvm import tirx

from heterocc.compiler.lower.cpu.blocks import BlockView, read_blocks
from heterocc.compiler.lower.cpu.generate.epilogue import STORED
from heterocc.compiler.lower.cpu.generate.places import Linear, index, offset, shape_of
from heterocc.compiler.lower.cpu.generate.read import Combination, Nest, combination, is_constant
from heterocc.compiler.lower.cpu.sizes import Size, is_one, same, typical
from heterocc.compiler.lower.kernels.expressions import (
    dtype_of,
    is_conditional,
    is_iters,
    loads,
    nodes,
    substituted,
    uses,
)

_QUANTISED = ("float32", "int8", "uint8")
"""Types of what a kernel has for each element of a row; what it does not store may be bool, too."""


@dataclass(frozen=True)
class RowStage:
    """The value written to `buffer` at `indices`: `value`, or its combination over the row if `combined` is given.

    Both are expressions of the kernel's loops, which `loops` numbers. `value` reads other stages at the same place.
    """

    buffer: tirx.Buffer
    indices: tuple[tirx.Expr, ...]
    loops: frozenset[int]
    value: tirx.Expr
    combined: Combination | None


@dataclass(frozen=True, kw_only=True)
class Rows(Nest):
    """Stages in order. Of `loops`, which all run more than once, those of kind "R" are along a row."""

    stages: tuple[RowStage, ...]

    def number(self, buffer: tirx.Buffer) -> int | None:
        """The number of the stage that writes a buffer."""
        return next((n for n, s in enumerate(self.stages) if s.buffer.same_as(buffer)), None)

    def reads(self, stages: Iterable[RowStage]) -> list[Linear]:
        """The offsets of what stages read of arguments, as far as they are linear."""
        every = [load for stage in stages for load in loads(stage.value) if self.number(load.source) is None]
        return [form for load in every if (form := offset(load.indices, load.source, self.loops)) is not None]

    def writes(self, stages: Iterable[RowStage]) -> list[Linear]:
        """The offsets of the outputs among stages."""
        given = [stage for stage in stages if self.argument(stage.buffer) is not None]
        return [form for s in given if (form := offset(s.indices, s.buffer, self.loops)) is not None]

    @property
    def accesses(self) -> list[Linear]:
        """The offsets of all inputs and outputs."""
        return [*self.writes(self.stages), *self.reads(self.stages)]


def read_rows(function: tirx.PrimFunc) -> Rows | None:
    """Read a kernel; None if it has no reduction, or a stage is not float32 along the same rows."""
    if not all(is_constant(p) for p in function.params):
        return None
    blocks = read_blocks(function)
    if blocks is None or not any(b.is_reduction for b in blocks):
        return None
    reader = _Reader(function, blocks)
    stages = reader.stages()
    if stages is None:
        return None
    kinds = "".join("R" if n in reader.row else "S" for n in range(len(reader.loops)))
    rows = Rows(
        function=function,
        loops=tuple(reader.loops),
        kinds=kinds,
        extents=tuple(reader.extents),
        after=(),
        stages=tuple(stages),
    )
    return rows if all(_is_known(rows, s) for s in stages) else None


def _is_known(rows: Rows, stage: RowStage) -> bool:
    """Whether a stage reads only other stages, and float32 in memory at linear offsets; of any type if it is single."""
    given, outer = rows.argument(stage.buffer) is not None, set(rows.places)
    single = stage.combined is None and not stage.loops - outer
    types = STORED if single else _QUANTISED if stage.combined is None else ("float32",)
    if given or stage.combined is not None:
        whole = set(range(len(rows.loops))) if stage.loops - outer else outer
        if stage.loops != whole or dtype_of(stage.buffer) not in types:
            return False
    if dtype_of(stage.buffer) not in (*types, "bool"):
        return False
    for load in loads(stage.value):
        if rows.number(load.source) is not None:
            continue
        if rows.argument(load.source) is None or not (single or dtype_of(load) == "float32"):
            return False
        if offset(load.indices, load.source, rows.loops) is None:
            return False
    bare = substituted(stage.value, [], lambda load: tirx.const(0, dtype_of(load)))
    lazy = not single and any(map(is_conditional, nodes(bare)))
    return not lazy and not any(uses(bare, v) for v in rows.loops)


@dataclass
class _Reader:
    """A reader of stages that assigns loops: those of the largest output first, then those of the reductions."""

    function: tirx.PrimFunc
    blocks: Sequence[BlockView]
    loops: list[tirx.Var] = field(default_factory=list)
    extents: list[Size] = field(default_factory=list)
    row: tuple[int, ...] = ()
    _places: list[tuple[tirx.Buffer, tuple[int | None, ...]]] = field(default_factory=list)
    """Buffers with the number of the loop of each dimension; None for dimensions of 1."""

    def stages(self) -> list[RowStage] | None:
        """All blocks as stages; None if they do not have the same rows."""
        outputs = [b for b in self.blocks if any(p.same_as(b.store.buffer) for p in self.function.params)]
        if not outputs:
            return None
        spatial = [[e for e, kind in zip(b.extents, b.kinds, strict=True) if kind == "S"] for b in outputs]
        largest, _ = max(zip(outputs, spatial, strict=True), key=lambda output: typical(prod(output[1])))
        shape = shape_of(largest.store.buffer) or ()
        if not self._place(largest.store.buffer, tuple(self._loop(n) for n in shape)):
            return None
        for output in outputs:
            if output is not largest and not self._beside(output.store.buffer, largest.store.buffer):
                return None
        read: list[RowStage] = []
        for block in reversed(self.blocks):
            stage = self._stage(block)
            if stage is None:
                return None
            read.append(stage)
        return read[::-1] if self.row else None

    def _loop(self, extent: Size) -> int | None:
        if is_one(extent):
            return None
        self.loops.append(tirx.Var(f"l{len(self.loops)}", "int64"))
        self.extents.append(extent)
        return len(self.loops) - 1

    def _place(self, buffer: tirx.Buffer, dimensions: tuple[int | None, ...]) -> bool:
        """Record the loops of a buffer's dimensions; False if they contradict earlier ones."""
        known = next((d for b, d in self._places if b.same_as(buffer)), None)
        if known is None:
            self._places.append((buffer, dimensions))
        return known is None or known == dimensions

    def _beside(self, buffer: tirx.Buffer, largest: tirx.Buffer) -> bool:
        """Assign loops to an output other than the largest."""
        shape, other = shape_of(buffer) or (), shape_of(largest) or ()
        dimensions = next(d for b, d in self._places if b.same_as(largest))
        if len(shape) != len(other) or not all(is_one(n) or same(n, m) for n, m in zip(shape, other, strict=True)):
            return False
        return self._place(buffer, tuple(None if is_one(n) else d for n, d in zip(shape, dimensions, strict=True)))

    def _stage(self, block: BlockView) -> RowStage | None:
        spatial = [v for v, kind in zip(block.iters, block.kinds, strict=True) if kind == "S"]
        extents = [e for e, kind in zip(block.extents, block.kinds, strict=True) if kind == "S"]
        dimensions = next((d for b, d in self._places if b.same_as(block.store.buffer)), None)
        if dimensions == () and extents == [1]:
            spatial, extents = [], []  # the variable of a scalar's block
        if dimensions is None or len(dimensions) != len(spatial) or not is_iters(block.store.indices, spatial):
            return None
        if not all(
            is_one(e) if d is None else same(e, self.extents[d]) for e, d in zip(extents, dimensions, strict=True)
        ):
            return None
        numbers = list(zip(spatial, dimensions, strict=True))
        combined, value = None, block.store.value
        if block.is_reduction:
            combined = combination(block)
            terms = self._terms(block, frozenset(d for d in dimensions if d is not None))
            if combined is None or terms is None:
                return None
            numbers += terms
            value = combined.value
        values = [(v, index(0) if n is None else self.loops[n]) for v, n in numbers]
        value = substituted(value, values)
        if not self._reads(value):
            return None
        indices = tuple(index(0) if d is None else self.loops[d] for d in dimensions)
        loops = frozenset(d for d in dimensions if d is not None)
        return RowStage(block.store.buffer, indices, loops, value, combined)

    def _terms(self, block: BlockView, used: frozenset[int]) -> list[tuple[tirx.Var, int | None]] | None:
        """The row's loops for the loops of a reduction; None if it is over another row, or over single elements."""
        every = list(zip(block.iters, block.kinds, block.extents, strict=True))
        extents = [e for _, kind, e in every if kind == "R" and not is_one(e)]
        if not extents:
            return None
        if not self.row:
            free = [n for n in range(len(self.loops)) if n not in used]
            if not free:
                free = [n for n in (self._loop(e) for e in extents) if n is not None]
            self.row = tuple(free)
        if [self.extents[n] for n in self.row] != extents or used & set(self.row):
            return None
        left = iter(self.row)
        return [(v, None if is_one(e) else next(left)) for v, kind, e in every if kind == "R"]

    def _reads(self, value: tirx.Expr) -> bool:
        """Record the loops of the stages that a value reads."""
        for load in loads(value):
            if not any(load.source.same_as(b.store.buffer) for b in self.blocks):
                continue
            dimensions: list[int | None] = []
            for expr in load.indices:
                number = next((n for n, v in enumerate(self.loops) if expr.same_as(v)), None)
                if number is None and not (isinstance(expr, tirx.IntImm) and int(expr) == 0):
                    return False
                dimensions.append(number)
            if not self._place(load.source, tuple(dimensions)):
                return False
        return True
