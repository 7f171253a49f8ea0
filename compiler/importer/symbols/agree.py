"""Dimensions of a node's inputs that must be equal, which a model with named dimensions may leave open."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx

from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.operators.applied import requirements_of
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Requirement
from heterocc.compiler.symbolic.sizes import Size, product_of


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
    if given.node.op_type != "Reshape" or given.node.domain or given.attribute("allowzero", 0):
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


def shapes_needed(
    given: Given, result: tuple[Size | None, ...] | None, unknown: Collection[str]
) -> dict[int, tuple[Size, ...]]:
    """The shapes that inputs must have, by place, where sizes of `unknown` names are what another one says.

    `result` is the shape of the node's first output. Only a run knows whether the inputs have these shapes.
    """
    node, first = given.node, given.shape(0)
    if node.domain or first is None or None in first:
        return {}
    own = [size for size in first if size is not None]
    if node.op_type == "Reshape" and result is not None and None not in result:
        total = product_of(size for size in result if size is not None)
        for axis, size in enumerate(own):
            rest = product_of(own[:axis] + own[axis + 1 :])
            wanted = quotient(total, rest)
            if not size.names.isdisjoint(unknown) and wanted is not None and wanted * rest == total:
                return {} if wanted == size else {0: (*own[:axis], wanted, *own[axis + 1 :])}
    if node.op_type == "Split":
        axis = given.attribute("axis", 0) % len(own)
        wanted = next((right for left, right in ask(given, result).equal if left == own[axis]), own[axis])
        known = own[axis].names.isdisjoint(unknown) or wanted == own[axis]
        return {} if known else {0: (*own[:axis], wanted, *own[axis + 1 :])}
    if node.op_type == "ScatterND":
        pairs = _updates(given)
        return {2: tuple(own if own.names.isdisjoint(unknown) else new for own, new in pairs)} if pairs else {}
    second = given.shape(1)
    if node.op_type == "MatMul" and second is not None and None not in second:
        places = [(0, len(first) - 1), (1, max(len(second) - 2, 0))]
        return _alike([first, second], [places], unknown)
    if of_node(node).joins == "inputs" and all(
        s is not None and len(s) == len(first) and None not in s for s in given.shapes
    ):
        axes = [axis for axis in range(len(first)) if axis != given.attribute("axis") % len(first)]
        alike = [[(place, axis) for place in range(len(given.shapes))] for axis in axes]
        return _alike(given.shapes, alike, unknown)
    return {}


def _updates(given: Given) -> list[tuple[Size, Size]]:
    """The sizes of the updates of a ScatterND, each with what it must be: a slice of the data for each index tuple."""
    data, indices, updates = (given.shape(place) or (None,) for place in range(3))
    depth = None if indices[-1] is None else indices[-1].number
    if depth is None or None in data or None in indices or None in updates:
        return []
    own, wanted = [d for d in updates if d is not None], [d for d in (*indices[:-1], *data[depth:]) if d is not None]
    return list(zip(own, wanted, strict=True)) if len(own) == len(wanted) else []


def _alike(
    shapes: Sequence[Shape], alike: Iterable[Sequence[tuple[int, int]]], unknown: Collection[str]
) -> dict[int, tuple[Size, ...]]:
    """The shapes, by place, in which sizes of unknown names become those of others; empty if known ones differ.

    Each element of `alike` has the sizes that must be equal, as places of shapes and axes.
    """
    wanted = [[size for size in shape or () if size is not None] for shape in shapes]
    for places in alike:
        known = {wanted[place][axis] for place, axis in places if wanted[place][axis].names.isdisjoint(unknown)}
        if len(known) > 1:
            return {}
        first = wanted[places[0][0]][places[0][1]]
        for place, axis in places:
            wanted[place][axis] = next(iter(known), first)
    return {n: tuple(new) for n, (new, old) in enumerate(zip(wanted, shapes, strict=True)) if tuple(new) != old}
