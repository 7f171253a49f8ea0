"""Checks of sizes in branches and bodies, which no check before the run covers: a run may leave these nodes out."""

from __future__ import annotations

from collections.abc import Iterable

from heterocc.compiler.lower.converters.computed.required import AXES, LEAST, LEAST_SIZE, NAMED
from heterocc.compiler.lower.cpu.programs.program_builder import Builder
from heterocc.compiler.lower.cpu.programs.steps import Code, Step, inner
from heterocc.compiler.symbolic.comparisons import least_sizes
from heterocc.compiler.symbolic.sizes import Size

_MOST_TRIED = 4096


class Limits:
    """Adds steps that end a run in which a size would be less than 1, or than 0 where a dimension may be empty."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self.protos = {p.name: p for p in builder.protos}
        self.count = 0

    def add(self, steps: list[Step]) -> None:
        """Add the checks to steps, and to those inside them."""
        for step in steps:
            for part in inner(step):
                self.add(part)
        parts = [step for step in steps if isinstance(step, Code)]
        sizes = list(self._sizes(n for part in parts for n in part.nodes))
        needed = least_sizes(sizes)
        checks: list[Step] = []
        for name in self.b.symbols.names:
            empty = name in self.b.model.may_be_empty
            least = _least_not_negative(name, sizes) if empty else needed.get(name, 1)
            shown = self._input_with(name)
            if least > max(self.b.model.bounds[name].min, 0 if empty else 1) and shown is not None:
                self._check(name, least, *shown, checks)
        steps[:0] = checks

    def _check(self, name: str, least: int, shown: str, axis: int, checks: list[Step]) -> None:
        self.count += 1
        source = self.b.model.sources.get(shown, shown)
        text = f"dimension '{name}' of input '{source}' must be {least} or more for the branch that the run takes"
        self.b.require(
            LEAST_SIZE, [shown], f"size_check_{self.count}", checks, {AXES: [axis], LEAST: least, NAMED: text}
        )

    def _sizes(self, nodes: Iterable[str]) -> Iterable[Size]:
        touched = {v for n in nodes for v in (*self.protos[n].input, *self.protos[n].output) if v in self.b.values}
        for value in sorted(touched):
            yield from (size for size in self.b.symbols.shape_of(self.b.values[value]) or () if size is not None)

    def _input_with(self, name: str) -> tuple[str, int] | None:
        """An input of the model that has a dimension, and its axis."""
        for given in self.b.model.graph.inputs:
            shape = self.b.values[given].shape or ()
            if name in shape:
                return given, shape.index(name)
        return None


def _least_not_negative(name: str, sizes: Iterable[Size]) -> int:
    """The least size of a named dimension with which none of the sizes that depend on it alone is negative."""
    alone = [size for size in sizes if size.names == {name}]
    return next((n for n in range(_MOST_TRIED) if all(size.at({name: n}) >= 0 for size in alone)), 0)
