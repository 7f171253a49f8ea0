"""Shapes of the results of If, Loop and Scan, and of the values in their branches and bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

import numpy as np
import onnx

from heterocc.compiler.importer.symbols.branches import SIDES, Branches
from heterocc.compiler.importer.symbols.repeats import Repeat, Rows, State, body_of, constants_of, repeat_of
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.containers import Elements, merged, without
from heterocc.compiler.symbolic.contents import as_contents
from heterocc.compiler.symbolic.given import Contents, Shape
from heterocc.compiler.symbolic.sizes import Size, named, number
from heterocc.passes.graph import Value

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
Table = MutableMapping[str, Value]


class Inside:
    """A walk through the bodies of a model's nodes.

    `derive` adds the values of a body to the table. `shape_of` and `dims` convert shapes between those of values and
    sizes; `contents` has the known integers by value, `fresh` the sizes known only at run time. The states of
    a Scan, unlike those of a Loop, keep their shapes: `equal` collects sizes that must be equal for this. `taken`
    collects what is known of branches, and `elements` what sequences and optional values hold.
    """

    def __init__(
        self,
        derive: Callable[[onnx.GraphProto, Table, Arrays], None],
        shape_of: Callable[[Value | None], Shape],
        dims: Callable[[Shape], tuple[int | str | None, ...] | None],
        contents: MutableMapping[str, Contents],
        fresh: MutableMapping[str, str],
        sizes: MutableMapping[str, Size],
        equal: MutableSequence[tuple[Size, Size, str]],
        taken: Branches,
        elements: MutableMapping[str, Elements],
    ) -> None:
        self._elements = elements
        self._derive, self._shape_of, self._dims, self._taken = derive, shape_of, dims, taken
        self._contents, self._fresh, self._sizes, self._equal = contents, fresh, sizes, equal

    def results(self, node: onnx.NodeProto, table: Table, constants: Arrays) -> list[Shape]:
        """The shapes of the node's outputs, None for unknown ones; adds the values inside to the table."""
        known = set(self._fresh)
        for name in node.output:
            self._elements.pop(name, None)
        if of_node(node).control == "branches":
            found = self._branches(node, table, constants)
        else:
            repeat = repeat_of(node, constants)
            found = [] if repeat is None else self._repeated(repeat, node, table, constants)
        inner = set(self._fresh) - known
        for name in node.output:
            if name in self._elements:
                self._elements[name] = without(self._elements[name], self._inside(node))
        return [None if s is None else tuple(None if d is None or d.names & inner else d for d in s) for s in found]

    def _inside(self, node: onnx.NodeProto) -> frozenset[str]:
        """The sizes that nodes in the bodies of a node, or its states, define."""
        nodes = set(_nodes_inside(node))
        states = {i.name for body in _bodies(node) for i in body.input}
        return frozenset(
            size for size, owner in self._fresh.items() if owner in nodes or size.rpartition(".")[0] in states
        )

    def _branches(self, node: onnx.NodeProto, table: Table, constants: Arrays) -> list[Shape]:
        side = self._decided(node, constants)
        if side is not None:
            self._taken.decided[node.name] = side
        side = side or self._taken.needed.get(node.name)
        if side is not None:
            body = body_of(node, side)
            self._walk(body, table, constants)
            self._hold(node.output, [o.name for o in body.output], table)
            return [self._shape_of(table.get(o.name)) for o in body.output]
        ends: list[list[Shape]] = []
        for name in SIDES:
            body = body_of(node, name)
            with self._taken.inside(node.name, name):
                self._walk(body, table, constants)
            ends.append([self._shape_of(table.get(o.name)) for o in body.output])
            self._hold(node.output, [o.name for o in body.output], table)
        pairs = list(zip(*ends, strict=True))
        if any(one is not None and other is not None and len(one) != len(other) for one, other in pairs):
            self._taken.open[node.name] = self._taken.place
        return [_agreed(one, other) for one, other in pairs]

    def _hold(self, results: Iterable[str], ends: Iterable[str], table: Table) -> None:
        """Note what results hold that are sequences or optional values; each may be one of several ends."""
        for result, end in zip(results, ends, strict=False):
            if not result or end not in self._elements:
                continue
            before, value = self._elements.get(result), table[end]
            self._elements[result] = self._elements[end] if before is None else merged(before, self._elements[end])
            table[result] = Value(result, value.dtype if result not in table else table[result].dtype, None)

    def _decided(self, node: onnx.NodeProto, constants: Arrays) -> str | None:
        """The branch that an If takes in every run; None if sizes do not decide it."""
        name = node.input[0]
        found = self._contents.get(name)
        truth = None if found is None or found.size != 1 else found.flat[0]
        known = constants.get(name)
        if truth is not None and truth.number is not None:
            return SIDES[0] if truth.number else SIDES[1]
        return None if known is None else SIDES[0] if known.reshape(-1)[0] else SIDES[1]

    def _walk(self, body: onnx.GraphProto, table: Table, constants: Arrays) -> None:
        own = constants_of(body)
        for name, array in own.items():
            table[name] = Value(name, array.dtype.name, tuple(array.shape))
            found = as_contents(array)
            if found is not None:
                self._contents[name] = found
        self._derive(body, table, {**constants, **own})

    def _repeated(self, repeat: Repeat, node: onnx.NodeProto, table: Table, constants: Arrays) -> list[Shape]:
        """A dimension of a state that changes from trip to trip gets a name; the search ends when none is left."""
        table[repeat.index] = Value(repeat.index, "int64", _declared(repeat.body, repeat.index))
        if repeat.going:
            table[repeat.going] = Value(repeat.going, "bool", _declared(repeat.body, repeat.going))
        for rows in repeat.read:
            outer = table.get(rows.outer)
            shape = self._shape_of(outer)
            if outer is None or shape is None:
                return []
            axis = rows.axis % len(shape)
            table[rows.inner] = Value(rows.inner, outer.dtype, self._dims((*shape[:axis], *shape[axis + 1 :])))
        shapes: dict[str, list[Size | None]] = {}
        held = dict.fromkeys(state for state in repeat.states if state.initial in self._elements)
        plain = dict.fromkeys(state for state in repeat.states if state not in held)
        for state in held:
            self._elements.pop(state.given, None)
            self._hold([state.given], [state.initial], table)
        for state in plain:
            shape = self._shape_of(table.get(state.initial))
            if shape is None or None in shape:
                return []
            shapes[state.given] = list(shape)
        while True:
            for state in plain:
                dtype = table[state.initial].dtype
                table[state.given] = Value(state.given, dtype, self._dims(tuple(shapes[state.given])))
                self._contents.pop(state.given, None)
            with self._taken.inside(node.name):
                self._walk(repeat.body, table, constants)
            changed = self._held_changes(node, held)
            for state in plain:
                before, after = shapes[state.given], self._shape_of(table.get(state.returned))
                if after is None or len(after) != len(before):
                    return []
                for axis, size in enumerate(after):
                    name = f"{state.given}.{axis}"
                    first = before[axis]
                    if of_node(node).control == "scan" and size is not None and first is not None and size != first:
                        self._equal.append((first, size, f"Scan '{node.name}'"))
                    if size != before[axis] and before[axis] != named(name):
                        self._fresh[name] = node.name
                        self._sizes[name] = before[axis] = named(name)
                        changed = True
            if not changed:
                break
        trips = self._trips(repeat, table)
        for state in held:
            self._hold([state.result], [state.given], table)
        ends: list[Shape] = [tuple(shapes[s.given]) if s in plain else None for s in repeat.states]
        return [*ends, *(_stacked(self._shape_of(table.get(r.inner)), trips, r) for r in repeat.collected)]

    def _held_changes(self, node: onnx.NodeProto, held: Iterable[State]) -> bool:
        """Note what sequences and optional values may hold on later trips; return whether that is more than before."""
        changed = False
        for state in held:
            before, inside = self._elements[state.given], self._inside(node)
            after = merged(before, without(self._elements.get(state.returned, Elements(None)), inside))
            self._elements[state.given] = after
            changed |= after != before
        return changed

    def _trips(self, repeat: Repeat, table: Table) -> Size | None:
        """The number of trips, if it follows from sizes."""
        if repeat.condition:
            return None
        if repeat.read:
            rows = repeat.read[0]
            shape = self._shape_of(table.get(rows.outer)) or ()
            return shape[rows.axis % len(shape)]
        first, limit = self._contents.get(repeat.first), self._contents.get(repeat.limit)
        runs = not repeat.first or (first is not None and first.size == 1 and first.flat[0] == number(1))
        size: Size | None = limit.flat[0] if runs and limit is not None and limit.size == 1 else None
        return size if size is not None and size.least is not None and size.least >= 0 else None


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def _nodes_inside(node: onnx.NodeProto) -> Iterator[str]:
    for inner in (n for body in _bodies(node) for n in body.node):
        yield inner.name
        yield from _nodes_inside(inner)


def _agreed(one: Shape, other: Shape) -> Shape:
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(a if a == b else None for a, b in zip(one, other, strict=True))


def _stacked(row: Shape, trips: Size | None, rows: Rows) -> Shape:
    if row is None:
        return None
    axis = rows.axis % (len(row) + 1)
    return (*row[:axis], trips, *row[axis:])


def _declared(body: onnx.GraphProto, name: str) -> tuple[int, ...]:
    """The shape of the index or condition: a scalar, or one element if the body says so."""
    info = next((i for i in body.input if i.name == name), None)
    return () if info is None else (1,) * len(info.type.tensor_type.shape.dim)
