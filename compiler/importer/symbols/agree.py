"""Dimensions of a node's inputs that must be equal, which a model with named dimensions may leave open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.operators.applied import requirements_of
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Requirement
from heterocc.compiler.symbolic.sizes import Size


@dataclass(frozen=True, slots=True)
class Asked:
    """A node with what is known of it, or of another one of its kind, and the requirements that may not hold."""

    node: onnx.NodeProto
    given: Given
    requirements: Sequence[Requirement]

    @property
    def equal(self) -> list[tuple[Size, Size]]:
        """Pairs of sizes that must be equal and are not for all sizes of the named dimensions."""
        return [(r.left, r.right) for r in self.requirements if r.relation == "equal"]

    @property
    def broadcast(self) -> list[tuple[Size, Size]]:
        """Pairs of sizes that are broadcast with each other, of which none is 1 for all sizes of the named dimensions.

        There are none for operators whose code takes both sizes.
        """
        found = [(r.left, r.right) for r in self.requirements if r.relation == "broadcast"]
        return found if found and not of_node(self.node).chooses else []


def ask(given: Given, result: tuple[Size | None, ...] | None) -> Asked:
    """What a node needs of sizes; `result` is the shape of its first output."""
    return Asked(given.node, given, _requirements(given, result))


def _requirements(given: Given, result: tuple[Size | None, ...] | None) -> list[Requirement]:
    """The requirements of a node; none if its rule fails, as it may for nodes that ONNX Runtime refuses later."""
    try:
        return list(requirements_of(given, result))
    except (HeteroccError, MemoryError):
        raise
    except Exception as error:  # rules assume valid nodes; devices refuse a node whose rule fails
        pass_foreign(error)
        return []


def copied_axes(given: Given, unknown: Collection[str]) -> list[int]:
    """The axes of a Reshape whose computed size may be 0 where the data's is not, which it would copy then.

    Only sizes that depend on `unknown` names, those known only at run time, may be 0.
    """
    shape, wanted = given.shape(), given.contents[1] if len(given.contents) > 1 else None
    if not of_node(given.node).copies_sizes or given.attribute("allowzero", 0):
        return []
    if shape is None or wanted is None:
        return []

    def differs(size: Size, own: Size) -> bool:
        times = quotient(own, size)
        return times is None or times * size != own

    return [
        axis
        for axis, (size, own) in enumerate(zip(wanted.flat, shape, strict=False))
        if size is not None and own is not None and (size.least or 0) < 1
        if not size.names.isdisjoint(unknown) and differs(size, own)
    ]


def shapes_needed(given: Given, result: Shape, unknown: Collection[str]) -> Mapping[int, tuple[Size, ...]]:
    """The shapes that inputs must have, by place, where sizes of `unknown` names are what another one says.

    `result` is the shape of the node's first output. Only a run knows whether the inputs have these shapes.
    """
    rule, first = of_node(given.node).shaped, given.shape(0)
    return {} if rule is None or first is None or None in first else rule(given, result, unknown)
