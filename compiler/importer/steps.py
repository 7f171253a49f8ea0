"""Steps of the import, which have names, and what repeats them until none changes the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from heterocc.artifacts.errors import InternalError
from heterocc.compiler.importer.draft.draft import Draft, graphs_of
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.folding.simplify import simplify
from heterocc.compiler.operators.record import Operator
from heterocc.compiler.operators.table import operators_of
from heterocc.passes.graph import Value

_MOST_CHANGES = 10_000
"""The limit on changes until none is left; a model with as many loops and sequences takes hours for other reasons."""


@dataclass
class Rewriting:
    """A draft while steps change it. `applied` are the names of those that did, in order.

    `values` is what is known of the draft's values since it was simplified last.
    """

    draft: Draft
    namer: Namer
    where: str
    values: Mapping[str, Value] = field(default_factory=dict)
    applied: list[str] = field(default_factory=list)

    def simplify(self) -> None:
        """Simplify the draft, and derive what is known of its values again."""
        self.values = simplify(self.draft, self.where)

    def settle(self, steps: Iterable[Step]) -> None:
        """Run steps until none changes the draft: after each change, which is simplified, from the first one on.

        Raises InternalError (HC902) if that does not end.
        """
        steps = tuple(steps)
        for _ in range(_MOST_CHANGES):
            used = operators_of(graphs_of(self.draft.graph))
            step = next((step for step in steps if any(map(step.concerns, used)) and step.run(self)), None)
            if step is None:
                return
            self.applied.append(step.name)
            self.simplify()
        raise InternalError(
            f"the import does not end: after {_MOST_CHANGES} changes, {' and '.join(sorted({*self.applied[-64:]}))} "
            "still find something to change",
            where=self.where,
            hint="a heterocc bug; please report it with the model",
        )


def _any(_operator: Operator) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Step:
    """A change of a draft, if there is something to change: `run` returns whether there was.

    There is not unless the graph or a body has an operator that it `concerns`.
    """

    name: str
    run: Callable[[Rewriting], bool]
    concerns: Callable[[Operator], object] = _any
