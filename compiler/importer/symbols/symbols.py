"""What is known of the sizes of a model with named dimensions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

import onnx

from heterocc.artifacts.manifest import Range
from heterocc.compiler.importer.symbols.branches import Branches
from heterocc.compiler.symbolic.containers import Elements
from heterocc.compiler.symbolic.given import Contents, Limit, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Filled, Size, named, number, product_of
from heterocc.passes.graph import Value

DEEPEST = 32
"""Quotients, minima and maxima inside each other, of a size that is known by an expression: comparisons of nested ones
take time with the power of their depth. A deeper one is known only at run time."""

_MOST_TRIED = 4096
"""The largest side of a square image that is tried."""

Dims = tuple[int | str | None, ...] | None
"""The shape of a value."""


@dataclass(frozen=True, slots=True)
class Pin:
    """A size that is assumed to be a number, because a node needs it; `node` is a text for this node.

    Of a size of one name the range of that name says so; one of several names is a condition of a run.
    """

    size: Size
    number: int
    node: str

    @property
    def is_joint(self) -> bool:
        """Whether the size is one of several names."""
        return len(self.size.names) > 1

    def side(self) -> int | None:
        """The least size of all its names with which the size is the number, as for a square image."""
        equal = (n for n in range(1, _MOST_TRIED + 1) if self.size.at(dict.fromkeys(self.size.names, n)) == self.number)
        return next(equal, None)


@dataclass
class Symbols:
    """What is known of a model's sizes.

    `names` are the named dimensions of its inputs, `sizes` the expressions of dimensions by their text in shapes.
    `contents` are the integers that nodes compute from shapes, by value, and `fractions` what they compute in floats
    before they round it. `limits` are assumptions of the shapes, by the
    text of the size that is limited. `fresh` are the names of sizes that are known only at run time, each with the node
    that computes it. `failed` are the nodes whose rules raised an error: either the node is not valid, or the rule.
    `filled` are names of dimensions that are at least 1 in every run, which the shapes assume. `pins` are sizes that
    are assumed to be a number, by their texts, and `ranges` the least and largest sizes of the names with which those
    of one name are; `steps` are names whose sizes are multiples of a number (`shapes/assumed.py`). `equal` collects
    sizes that must be equal, each pair with a text for its node, and `floors` least sizes that the shapes assume.
    `branches` has the branches that runs can take. `elements` has what sequences and optional values hold, by value,
    `given` of those that are inputs of the model.
    """

    names: tuple[str, ...]
    sizes: dict[str, Size] = field(default_factory=dict)
    contents: dict[str, Contents] = field(default_factory=dict)
    fractions: dict[str, Contents] = field(default_factory=dict)
    limits: dict[str, Limit] = field(default_factory=dict)
    fresh: dict[str, str] = field(default_factory=dict)
    failed: list[tuple[onnx.NodeProto, Exception]] = field(default_factory=list)
    filled: frozenset[str] = frozenset()
    pins: Mapping[str, Pin] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    equal: list[tuple[Size, Size, str]] = field(default_factory=list)
    floors: dict[str, int] = field(default_factory=dict)
    branches: Branches = field(default_factory=Branches)
    elements: dict[str, Elements] = field(default_factory=dict)
    given: Mapping[str, Elements] = field(default_factory=dict)
    empty: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.sizes.update((name, named(Filled(name) if name in self.filled else name)) for name in self.names)

    def copy(self) -> Symbols:
        """A copy that can be changed."""
        return Symbols(
            self.names,
            dict(self.sizes),
            dict(self.contents),
            dict(self.fractions),
            dict(self.limits),
            dict(self.fresh),
            filled=self.filled,
            pins=self.pins,
            ranges=self.ranges,
            steps=self.steps,
            floors=dict(self.floors),
            branches=self.branches.fresh(),
            elements=dict(self.elements),
            given=self.given,
            empty=self.empty,
        )

    @property
    def state(self) -> Hashable:
        """What changes when the values of a node are derived, but for these: equal states mean that nothing has."""
        least = len(self.limits), sum(limit.most for limit in self.limits.values())  # limits only become smaller
        return len(self.sizes), len(self.fresh), len(self.failed), len(self.equal), len(self.branches.broken), least

    def is_noted(self, node: onnx.NodeProto, values: Mapping[str, Value]) -> bool:
        """Whether a node is known to be broken, or its results hold others, or have sizes with names of their own."""
        results = [name for name in node.output if name]
        dims = {dim for name in results for dim in values[name].shape or () if isinstance(dim, str)}
        return (
            node.name in self.branches.broken
            or any(name in self.elements for name in results)
            or any(self.fresh.get(dim) == node.name for dim in dims)
        )

    def may_be_empty(self, dims: Iterable[int | str | None]) -> frozenset[str]:
        """The names of which a size of 0 makes none of these dimensions 0: the length of past keys, say."""
        sizes = [self.sizes[d] for d in dict.fromkeys(dims) if isinstance(d, str) and d in self.sizes]
        by_name: dict[str, list[Size]] = {}
        for size in sizes:
            for name in size.names:
                by_name.setdefault(name, []).append(size)
        return frozenset(
            name
            for name in self.names
            if name not in self.filled
            and all(s.at({**dict.fromkeys(s.names, 1), name: 0}) > 0 for s in by_name.get(name, ()))
        )

    def is_fresh(self, dim: int | str | None) -> bool:
        """Whether a dimension depends on a size that is known only at run time."""
        return isinstance(dim, str) and not self.fresh.keys().isdisjoint(self.sizes[dim].names)

    def agree(self, left: Size, right: Size) -> bool:
        """Whether two sizes are equal in each run, because of the assumptions."""
        pinned = [number(self.pins[s.text].number) if s.text in self.pins else s for s in (left, right)]
        return self._whole(pinned[0]) == self._whole(pinned[1])

    def _whole(self, size: Size) -> Size:
        """The size with multiples of quotients in place of the names that have a step."""
        total = number(0)
        for product, count in size.terms:
            factors = [named(a) if isinstance(a, str) else Size((((a,), 1),)) for a in product]
            for index, factor in enumerate(factors):
                step = number(self.steps.get(factor.name or "", 1))
                factors[index] = (quotient(factor, step) or factor) * step
            total = total + product_of(factors) * number(count)
        return total

    def name_unknown(self, value: str, shape: Dims, node: str) -> Dims:
        """The shape with a new name for each unknown dimension: that of the value, and the axis."""
        if shape is None or None not in shape:
            return shape
        dims: list[int | str | None] = []
        for axis, dim in enumerate(shape):
            name = f"{value}.{axis}"
            if dim is None and name not in self.names:
                self.fresh[name] = node
                self.sizes[name] = named(name)
                dim = name
            dims.append(dim)
        return tuple(dims)

    def shape_of(self, value: Value | None) -> Shape:
        """The shape of a value."""
        if value is None or value.shape is None:
            return None
        return tuple(number(d) if isinstance(d, int) else self.sizes.get(d) if d else None for d in value.shape)

    def dims(self, shape: Shape) -> tuple[int | str | None, ...] | None:
        """A shape as numbers and texts; None for a dimension that is not known."""
        return None if shape is None else tuple(map(self._dim, shape))

    def _dim(self, size: Size | None) -> int | str | None:
        if size is None or size.number is not None:
            return None if size is None or (size.number or 0) < 0 else size.number
        if size.text in self.pins:
            return self.pins[size.text].number
        if size.depth > DEEPEST:
            return None
        known = self.sizes.setdefault(size.text, size)
        return size.text if known == size else None  # a dimension whose name reads like an expression
