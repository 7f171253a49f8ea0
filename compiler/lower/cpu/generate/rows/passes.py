"""The passes over a row of a kernel, and the values stored between them.

Reductions that need each other's results are in separate passes, others share one. The last pass stores the outputs.
Values that several passes read are stored by the first of them if computing takes longer than loading, otherwise
computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Call

from heterocc.compiler.lower.cpu.generate.rows.stages import Rows, RowStage
from heterocc.compiler.lower.kernels.expressions import dtype_of, loads, outside_loads


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over a row: `stores` are stored for later passes, then `reductions` combined, or `outputs` stored.

    `before` are stages with one value per row that are computed before the pass. All are numbers of stages, in order.
    """

    before: tuple[int, ...]
    stores: tuple[int, ...]
    reductions: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Passes:
    """All passes in order; `after` are the stages with one value per row that are computed after them."""

    passes: tuple[Pass, ...]
    after: tuple[int, ...]

    @property
    def stored(self) -> tuple[int, ...]:
        """The stages whose rows are stored for later passes, outputs among them."""
        return tuple(n for p in self.passes for n in p.stores)


def plan_passes(rows: Rows) -> Passes:
    """The passes of a kernel."""
    levels = _levels(rows)
    every = range(len(rows.stages))
    reductions = [n for n in every if rows.stages[n].combined is not None]
    groups = [tuple(n for n in reductions if levels[n] == 1 + i) for i in range(max(levels[n] for n in reductions))]
    outputs = tuple(n for n in every if is_row(rows, n) and rows.argument(rows.stages[n].buffer) is not None)
    first = _stored(rows, [*groups, outputs])
    heads = [n for n in every if is_head(rows, n)]
    passes = []
    for number in range(len(groups) + bool(outputs)):
        before = tuple(n for n in heads if levels[n] == number)
        stores = tuple(n for n in sorted(first) if first[n] == number)
        last = number == len(groups)
        left = tuple(n for n in outputs if n not in first) if last else ()
        passes.append(Pass(before, stores, () if last else groups[number], left))
    return Passes(tuple(passes), tuple(n for n in heads if levels[n] >= len(passes)))


def is_row(rows: Rows, number: int) -> bool:
    """Whether a stage has a value for each element of a row."""
    return bool(rows.stages[number].loops & set(rows.terms))


def is_head(rows: Rows, number: int) -> bool:
    """Whether a stage has one value per row, computed from others."""
    stage = rows.stages[number]
    return stage.combined is None and not is_row(rows, number) and dtype_of(stage.buffer) != "bool"


def is_slow(stage: RowStage) -> bool:
    """Whether computing a value takes longer than loading it: a function or a division is computed."""
    return any(isinstance(n, Call | tirx.Div) for n in outside_loads(stage.value))


def _reads(rows: Rows, number: int) -> set[int]:
    reads = (rows.number(load.source) for load in loads(rows.stages[number].value))
    return {n for n in reads if n is not None}


def _levels(rows: Rows) -> list[int]:
    """The number of passes that must be complete before a stage is available, a reduction's own pass included."""
    levels: list[int] = []
    for number, stage in enumerate(rows.stages):
        level = max((levels[n] for n in _reads(rows, number)), default=0)
        levels.append(level + int(stage.combined is not None))
    return levels


def _stored(rows: Rows, groups: list[tuple[int, ...]]) -> dict[int, int]:
    """The stored stages, with the number of the pass that stores each."""
    computed: list[set[int]] = [{i for i, group in enumerate(groups) if n in group} for n in range(len(rows.stages))]
    first: dict[int, int] = {}
    for number in reversed(range(len(rows.stages))):
        stage = rows.stages[number]
        whole = set(rows.terms) <= stage.loops and dtype_of(stage.buffer) == "float32"
        worth = rows.argument(stage.buffer) is not None or is_slow(stage)
        if len(computed[number]) > 1 and whole and worth:
            first[number] = min(computed[number])
            computed[number] = {first[number]}
        for read in _reads(rows, number):
            computed[read] |= computed[number]
    return first
