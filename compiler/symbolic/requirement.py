"""What an operator needs of the sizes of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import onnx

from heterocc.compiler.symbolic.comparisons import differ
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Size, number, smaller

Relation = Literal["equal", "at_least", "multiple", "broadcast"]
"""How the left size is related to the right one; `broadcast`: they are equal, or one of them is 1."""


@dataclass(frozen=True)
class Requirement:
    """A relation of two sizes without which a node cannot run. `what` names the left one: "dimension 1 of 'data'"."""

    left: Size
    relation: Relation
    right: Size
    what: str

    @property
    def text(self) -> str:
        """The relation in words."""
        return self.worded(self.right.text)

    def worded(self, right: str) -> str:
        """The relation in words, with a text for the right size."""
        words = {"equal": "{}", "at_least": "{} or more", "multiple": "a multiple of {}", "broadcast": "{} or 1"}
        return f"{self.what} must be {words[self.relation].format(right)}"

    @property
    def always(self) -> bool:
        """Whether it holds for all sizes of the named dimensions, as far as is known."""
        left, right = self.left, self.right
        match self.relation:
            case "equal":
                return left == right
            case "broadcast":
                return left == right or 1 in (left.number, right.number)
            case "at_least":
                gap = (left - right).least
                return gap is not None and gap >= 0
        times = quotient(left, right)
        return times is not None and times * right == left

    @property
    def never(self) -> bool:
        """Whether it holds for no sizes of the named dimensions."""
        left, right = self.left, self.right
        match self.relation:
            case "equal":
                return differ(left, right) is True
            case "broadcast":
                both = [size.number for size in (left, right)]
                return None not in both and both[0] != both[1] and 1 not in both
            case "at_least":
                gap = (right - left).least
                return gap is not None and gap >= 1
        if left.number is None or right.number is None:
            return False
        return right.number == 0 or left.number % right.number != 0


@dataclass
class Needs:
    """Collects the requirements of one node. Sizes that are not known, and absent inputs, are left out."""

    given: Given
    result: Shape = None
    found: list[Requirement] = field(default_factory=list)

    def shape(self, place: int, rank: int | None = None) -> Sequence[Size | None]:
        """The shape of an input; empty if it is absent, or not of this rank."""
        shape = self.given.shape(place) if self.given.has(place) else None
        return () if shape is None or (rank is not None and len(shape) != rank) else shape

    def size(self, place: int, axis: int) -> Size | None:
        """A dimension of an input."""
        shape = self.shape(place)
        return shape[axis] if -len(shape) <= axis < len(shape) else None

    def equal(self, place: int, axis: int, wanted: Size | int | None) -> None:
        """A dimension of an input is equal to a size."""
        self._add(place, axis, "equal", wanted)

    def at_least(self, place: int, axis: int, wanted: Size | int | None) -> None:
        """A dimension of an input has a least size."""
        self._add(place, axis, "at_least", wanted)

    def multiple(self, place: int, axis: int, wanted: Size | int | None) -> None:
        """A dimension of an input is a multiple of a size."""
        self._add(place, axis, "multiple", wanted)

    def broadcast(self, place: int, axis: int, wanted: Size | int | None) -> None:
        """A dimension of an input is equal to a size, or one of the two is 1."""
        self._add(place, axis, "broadcast", wanted)

    def spread(self, place: int, axis: int, wanted: Size | None) -> None:
        """A dimension of an input is equal to a size, or 1 and stands for each of that many."""
        size = self.size(place, axis)
        if size is None or wanted is None or size == wanted or size.number == 1:
            return
        if size.number is not None:  # and not 1
            self.equal(place, axis, wanted)
            return
        self.broadcast(place, axis, wanted)
        beside = f"the size to which dimension {axis % len(self.shape(place))} of {self.name(place)} is broadcast"
        self.relate(wanted, "at_least", size, beside)
        self.at_least(place, axis, smaller(wanted, number(1)))

    def shaped(self, place: int, wanted: Sequence[Size | int | None]) -> None:
        """An input of as many dimensions has this shape."""
        for axis, size in enumerate(wanted):
            if len(self.shape(place)) == len(wanted):
                self.equal(place, axis, size)

    def single(self, *places: int) -> None:
        """Inputs have one element, as a scalar or a vector."""
        for place in places:
            if len(self.shape(place)) == 1:
                self.equal(place, 0, 1)

    def fits(self, place: int, wanted: Sequence[Size | None]) -> None:
        """The last dimensions of an input are broadcast with these."""
        for axis in range(1, 1 + min(len(self.shape(place)), len(wanted))):
            self.broadcast(place, -axis, wanted[-axis])

    def relate(self, left: Size | None, relation: Relation, right: Size | None, what: str) -> None:
        """Two sizes are related, of which the first one is called `what`."""
        if left is not None and right is not None:
            self.found.append(Requirement(left, relation, right, what))

    def name(self, place: int) -> str:
        """An input's name in the documentation of the operator."""
        return input_name(self.given.node, self.given.opset, place)

    def _add(self, place: int, axis: int, relation: Relation, wanted: Size | int | None) -> None:
        size, rank = self.size(place, axis), len(self.shape(place))
        if size is None:
            return
        wanted = number(wanted) if isinstance(wanted, int) else wanted
        self.relate(size, relation, wanted, f"dimension {axis % rank} of {self.name(place)}")


def input_name(node: onnx.NodeProto, opset: int, place: int) -> str:
    """An input's name in the documentation of the operator."""
    return _input_name(node.op_type, node.domain, opset, place)


@lru_cache(4096)
def _input_name(op_type: str, domain: str, opset: int, place: int) -> str:
    try:
        inputs = onnx.defs.get_schema(op_type, opset, domain).inputs
    except onnx.defs.SchemaError:
        return f"input {place}"
    if place >= len(inputs) or inputs[place].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
        return f"input {place}"
    return f"'{inputs[place].name}'"
