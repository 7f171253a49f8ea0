"""Checks of sizes that only the run knows, before the nodes that rely on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import zip_longest

import numpy as np
import onnx

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.symbols.agree import copied_axes, shapes_needed
from heterocc.compiler.importer.symbols.requirements import open_requirements
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.lower.converters import REQUIRED, RESULTS
from heterocc.compiler.lower.converters.computed.broadcasting import broadcast_dims, broadcast_places
from heterocc.compiler.lower.converters.computed.required import (
    AXES,
    KNOWN_SIZES,
    LEFT,
    LENGTHS,
    NAMED,
    NOT_COPIED,
    RELATED,
    RELATIONS,
    RIGHT,
    SHAPED,
)
from heterocc.compiler.lower.converters.registry import part_domain
from heterocc.compiler.lower.cpu.programs.program_builder import Builder, copy_of
from heterocc.compiler.lower.cpu.programs.steps import Step
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.given import Given
from heterocc.compiler.symbolic.requirement import Relation, Requirement
from heterocc.compiler.symbolic.sizes import Size
from heterocc.passes.graph import Value


def is_open(node: onnx.NodeProto, values: Mapping[str, Value], symbols: Symbols) -> bool:
    """Whether only the run knows which of the sizes that an operator broadcasts are 1, and so stand for others."""
    names = [node.input[place] for place in broadcast_places(node)]
    if not names:
        return False
    shapes = [broadcast_dims(of_node(node), values[name].shape or ()) for name in names if name in values]
    columns = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    differing = [{d for d in column if d != 1} for column in columns]
    if any(len(dims) > 1 and any(map(symbols.is_fresh, dims)) for dims in differing):
        return True
    result = values.get(node.output[0])
    return result is not None and any(symbols.fresh.get(str(d)) == node.name for d in result.shape or ())


def needed_shapes(
    node: onnx.NodeProto, values: Mapping[str, Value], symbols: Symbols, opset: int
) -> dict[int, tuple[int | str, ...]]:
    """The shapes that the inputs of a node must have, by place, if only the run knows whether they have them."""
    shapes = [symbols.shape_of(values.get(name)) for name in node.input]
    given = Given(node, opset, shapes, [symbols.contents.get(name) for name in node.input])
    result = symbols.shape_of(values.get(node.output[0]))
    needed = {}
    for place, shape in shapes_needed(given, result, symbols.fresh.keys()).items():
        dims, own = symbols.dims(shape), shapes[place] or ()
        if dims is not None and not all(old and symbols.agree(old, new) for old, new in zip(own, shape, strict=True)):
            needed[place] = tuple(d for d in dims if d is not None)
    return needed


def run_requirements(
    node: onnx.NodeProto,
    model: ImportedModel,
    values: Mapping[str, Value],
    symbols: Symbols,
    opset: int,
    *,
    inside: bool = False,
    filled: Collection[str] = (),
) -> list[Requirement]:
    """The requirements of a node that code has to check: of sizes that only the run knows.

    For a node `inside` a branch or body they include those of sizes that are known before the run, which may leave the
    node out. The sizes `filled` are 1 or more, although only the run knows them.
    """
    known, own = frozenset(symbols.names), {name for name, owner in symbols.fresh.items() if owner == node.name}
    empty = (model.may_be_empty | symbols.fresh.keys()).difference(filled)
    requirements = open_requirements(node, values, symbols, opset, empty)
    covered = {"broadcast"} if is_open(node, values, symbols) else set()
    covered |= {"equal"} if needed_shapes(node, values, symbols, opset) else set()  # by checks of their own
    names = [(r, r.left.names | r.right.names) for r in requirements if r.relation not in covered]
    return [r for r, used in names if used.isdisjoint(own) and (inside or not used <= known)]


def _filled(left: Size, relation: Relation, right: Size) -> Collection[str]:
    """The sizes that are 1 or more by a relation: the factors of a product that is."""
    least = right.number if relation == "at_least" else None
    if least is None or least < 1 or len(left.terms) != 1:
        return ()
    return [atom for atom in left.terms[0][0] if isinstance(atom, str)]


def _shown(size: Size) -> str:
    """A size in an error: a number, or what is known of it."""
    return str(size.number) if size.number is not None else "that of another input"


class Checks:
    """Adds steps that end a run in which a node could not run."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    def add(self, node: onnx.NodeProto, steps: list[Step]) -> onnx.NodeProto:
        """Add the checks of a node; returns the node to add, which may rely on them."""
        self._require_sizes(node, steps)
        self._require_relations(node, steps)
        return self._squeezed(self._broadcast(self._of_needed_shapes(node, steps), steps))

    def _require_relations(self, node: onnx.NodeProto, steps: list[Step]) -> None:
        """End runs in which sizes do not fit that only the run knows, or that only some runs need."""
        inside = self.b.owner != node.name
        filled = {name for r in self.b.required for name in _filled(*r)}
        args = node, self.b.model, self.b.values, self.b.symbols, self.b.opset
        every = run_requirements(*args, inside=inside, filled=filled)
        requirements = [r for r in every if (r.left, r.relation, r.right) not in self.b.required]
        inputs = [self.b.held(name) for name in dict.fromkeys(node.input) if name in self.b.values]
        inputs = [name for name in inputs if not self.b.values[name].is_opaque]
        if not requirements or not inputs:
            return
        for needed in requirements:
            for side in (needed.left, needed.right):
                self.b.symbols.sizes.setdefault(side.text, side)
        texts = [r.worded(_shown(r.right)) for r in requirements]
        lists = {
            LEFT: [r.left.text for r in requirements],
            RELATIONS: [r.relation for r in requirements],
            RIGHT: [r.right.text for r in requirements],
            NAMED: [node.op_type, *texts],
        }
        self.b.require(RELATED, inputs, f"{node.name}.related", steps, lists)
        self.b.required |= {(r.left, r.relation, r.right) for r in requirements}

    def _of_needed_shapes(self, node: onnx.NodeProto, steps: list[Step]) -> onnx.NodeProto:
        """The node on copies of inputs with the shapes that it needs, where only the run knows theirs."""
        needed = needed_shapes(node, self.b.values, self.b.symbols, self.b.opset)
        if not needed:
            return node
        known = copy_of(node)
        for place, dims in needed.items():
            name = node.input[place]
            value = self.b.values[name]
            held = [self.b.held(name)]
            pairs = enumerate(zip(value.shape or (), dims, strict=True))
            numbers = {axis: size for axis, (own, size) in pairs if isinstance(size, int) and own != size}
            if numbers:
                lists = {AXES: list(numbers), LENGTHS: list(numbers.values()), NAMED: node.op_type}
                self.b.require(KNOWN_SIZES, held, f"{node.name}.{place}", steps, lists)
            shaped = f"{node.name}.{place}.shaped"
            known.input[place] = self.b.add(SHAPED, held, shaped, value=(value.dtype, dims), domain=REQUIRED)
        return known

    def _broadcast(self, node: onnx.NodeProto, steps: list[Step]) -> onnx.NodeProto:
        """An operator of which only the run knows which sizes are broadcast, on inputs of the shape of its result.

        A run in which the sizes do not fit ends.
        """
        if not is_open(node, self.b.values, self.b.symbols):
            return node
        held = {place: self.b.held(node.input[place]) for place in broadcast_places(node)}
        domain = part_domain(REQUIRED, node.domain)
        self.b.require(node.op_type, [*held.values()], node.name, steps, domain=domain)
        known = copy_of(node, part_domain(RESULTS, node.domain))
        for place, name in held.items():
            known.input[place] = name
        return known

    def _squeezed(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """A Squeeze of sizes that may be others than 1, which have ended the run, as one of the axes' first places."""
        given = node.input[0] if node.op_type == "Squeeze" and not node.domain else ""
        shape = self.b.values[given].shape if given else None
        listed = next((tuple(a.ints) for a in node.attribute if a.name == "axes"), None)
        if shape is not None and len(node.input) > 1 and node.input[1] in self.b.arrays:
            listed = tuple(int(n) for n in self.b.arrays[node.input[1]].reshape(-1))
        wide = [axis % len(shape) for axis in listed or () if shape[axis] != 1] if shape else []
        if shape is None or not wide:
            return node
        bounds = [
            self.b.constant(f"{node.name}.{n}", np.array(v, np.int64))
            for n, v in (("starts", [0] * len(wide)), ("ends", [1] * len(wide)), ("axes", wide))
        ]
        dims = tuple(1 if axis in wide else dim for axis, dim in enumerate(shape))
        first = self.b.add("Slice", [given, *bounds], f"{node.name}.first", value=(self.b.values[given].dtype, dims))
        known = copy_of(node)
        known.input[0] = first
        return known

    def _require_sizes(self, node: onnx.NodeProto, steps: list[Step]) -> None:
        """End runs in which a computed size of a Reshape is 0, and so means that of the data, which is not 0."""
        shapes = [self.b.symbols.shape_of(self.b.values.get(name)) for name in node.input]
        given = Given(node, self.b.opset, shapes, [self.b.symbols.contents.get(name) for name in node.input])
        axes = copied_axes(given, self.b.symbols.fresh.keys())
        if not axes:
            return
        held = [self.b.held(node.input[0]), self.b.held(node.input[1])]
        self.b.require(NOT_COPIED, held, node.name, steps, {AXES: axes})
