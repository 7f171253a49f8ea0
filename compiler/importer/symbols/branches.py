"""The branches that runs can take, of nodes that sizes decide, or whose branches return tensors of different ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

SIDES = ("then_branch", "else_branch")

Place = tuple[tuple[str, str], ...]
"""The branches and bodies around a node that a run may leave out, from the outermost inwards: nodes and branches."""


@dataclass
class Branches:
    """What is known of the If nodes of a model, by their names.

    `decided` are those that sizes decide, with the branch that every run takes. `needed` are those of which a run can
    only take this branch: in the other one, or after it, a node gets tensors of shapes that its operator does not take.
    `open` are other ones whose branches return tensors of different ranks. `broken` are the nodes whose inputs do not
    fit their operators. Both have the place of the node.
    """

    decided: dict[str, str] = field(default_factory=dict)
    needed: dict[str, str] = field(default_factory=dict)
    open: dict[str, Place] = field(default_factory=dict)
    broken: dict[str, Place] = field(default_factory=dict)
    place: Place = ()

    def only(self, name: str) -> str | None:
        """The branch of an If that every run takes which does not fail."""
        return self.decided.get(name) or self.needed.get(name)

    def fresh(self) -> Branches:
        """What is known before the shapes are derived again."""
        return Branches(needed=dict(self.needed))

    def supposing(self, name: str, side: str) -> Branches:
        """The same with the supposition that runs take a branch."""
        return replace(self.fresh(), needed={**self.needed, name: side})

    @contextmanager
    def inside(self, name: str, side: str = "") -> Iterator[None]:
        """Nodes in here are in a branch or body that a run may leave out."""
        before = self.place
        self.place = (*before, (name, side))
        try:
            yield
        finally:
            self.place = before

    def fails_after(self, place: Place, other: Branches) -> bool:
        """Whether a run that reaches `place` gets to a node that is broken here, and is not in `other`."""
        return any(place[: len(at)] == at for name, at in self.broken.items() if name not in other.broken)

    def without_failing(self) -> dict[str, str]:
        """The If nodes of which one branch always fails, with the other one."""
        failing = {at[-1] for at in self.broken.values() if at}
        pairs = [(name, side, SIDES[side == SIDES[0]]) for name, side in failing if side]
        return {name: other for name, _, other in pairs if (name, other) not in failing}
