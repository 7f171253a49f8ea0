"""A Loop that goes over the rows of a tensor, written as a Scan.

The body of such a Loop reads row after row by a Gather with a number that it counts up, and ends behind the last row.
TensorFlow's exporter writes recurrent layers so that it does not recognise. The number of turns of a Scan is a size,
so that its results have known shapes, and no condition is computed in a turn.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from heterocc.compiler.importer.draft.draft import Draft, np_type, reads, set_nodes
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.draft.written import copy_of
from heterocc.compiler.importer.repeating.body import drop_state, is_read, keeps_number, maker_of, prune, source_of
from heterocc.compiler.importer.symbols.repeats import Repeat, State, repeat_of
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.sizes import Size, number
from heterocc.passes.graph import Value

_OLDEST = 9
"""The operator set of the present form of Scan."""

_NEVER = 2**31 - 1
"""A number of turns from which on a loop is meant to end otherwise."""


def write_scans(draft: Draft, values: Mapping[str, Value], namer: Namer) -> bool:
    """Write a Scan in place of each such Loop of the graph; return whether there was any."""
    changed = False
    makers = {o: n for n in draft.graph.node for o in n.output}
    for node in draft.graph.node:
        if of_node(node).control == "loop" and draft.opset >= _OLDEST:
            repeat = repeat_of(node, draft.weights)
            found = None if repeat is None else _Counted(draft, values, makers, repeat).rows()
            if repeat is not None and found is not None:
                _write(node, repeat, found, values, namer)
                changed = True
    if changed:
        set_nodes(draft.graph, draft.graph.node)
    return changed


@dataclass(frozen=True, slots=True)
class _Found:
    """The Gathers of rows in a body, and the numbers of the states that only count turns."""

    gathers: tuple[onnx.NodeProto, ...]
    counters: tuple[int, ...]


class _Counted:
    """What is known of a Loop's number of turns."""

    def __init__(
        self, draft: Draft, values: Mapping[str, Value], makers: Mapping[str, onnx.NodeProto], repeat: Repeat
    ) -> None:
        """`makers` are the nodes of the graph by what they write."""
        self.draft, self.values, self.makers, self.repeat = draft, values, makers, repeat
        self.body = repeat.body
        self.own = {i.name for i in self.body.input} | {o for n in self.body.node for o in n.output}
        self.counters = [place for place, state in enumerate(repeat.states) if self._counts(state)]

    def rows(self) -> _Found | None:
        """The rows that the body reads, if there is one in each turn, and the loop ends behind the last one."""
        repeat, body = self.repeat, self.body
        gathers = tuple(n for n in body.node if self._takes_row(n))
        sizes = {self._size(n.input[0]) for n in gathers}
        size = next(iter(sizes)) if len(sizes) == 1 else None
        if size is None or not all(map(self._keeps_shape, repeat.states)):
            return None
        limit = self._number(repeat.limit) if repeat.limit else None
        never = limit is not None and limit.number is not None and limit.number >= _NEVER
        if repeat.limit and not never and limit != size:
            return None
        compared = self._comparisons(repeat.condition, size) if repeat.condition else set()
        if compared is None or (limit != size and 1 not in compared):
            return None
        if not self._begins(repeat.first, size) or is_read(body, repeat.going):
            return None
        if any(of_node(n).control for n in body.node):
            return None
        taken = {n.output[0] for n in gathers}
        read = {o.name for o in self.draft.graph.output}.union(*map(reads, self.draft.graph.node))
        dropped = [p for p in self.counters if repeat.states[p].result not in read]
        while True:
            used = self._used(taken, dropped)
            counted = [p for p in dropped if repeat.states[p].given in used]
            if not counted:
                break
            dropped = [p for p in dropped if p not in counted]
        return None if repeat.index in used else _Found(gathers, tuple(dropped))

    def _used(self, taken: set[str], dropped: Collection[int]) -> set[str]:
        """The values on which the body's results depend, without the condition, states and values that are given."""
        returned = [s.returned for place, s in enumerate(self.repeat.states) if place not in dropped]
        used = {*returned, *(rows.inner for rows in self.repeat.collected)}
        for node in reversed(self.body.node):
            if not used.isdisjoint(node.output) and taken.isdisjoint(node.output):
                used.update(node.input)
        return used

    def _counts(self, state: State) -> bool:
        """Whether a state is 0 in the first turn and grows by 1 with each."""
        first = self.draft.weights.get(state.initial)
        return first is not None and first.size == 1 and not first.any() and self._count(state.returned) == 1

    def _count(self, name: str) -> int | None:
        """How much larger than the number of the turn a value is; None for other values."""
        name = source_of(self.body, name, casts=True)
        if name == self.repeat.index:
            return 0
        for state in self.repeat.states:
            if name == state.given:
                first = self.draft.weights.get(state.initial)
                after = self._sum(source_of(self.body, state.returned, casts=True))
                counts = first is not None and first.size == 1 and not first.any() and after == (state.given, 1)
                return 0 if counts else None
        total = self._sum(name)
        before = None if total is None or total[0] == name else self._count(total[0])
        return None if total is None or before is None else before + total[1]

    def _sum(self, name: str) -> tuple[str, int] | None:
        """A value that is another one and a constant integer."""
        made = maker_of(self.body, name)
        if made is None or of_node(made).symbol != "+":
            return None
        for given, more in (made.input, reversed(made.input)):
            step = self._constant(more)
            if step is not None and step == int(step):
                return source_of(self.body, given, casts=True), int(step)
        return None

    def _constant(self, name: str) -> float | None:
        found = {t.name: onnx.numpy_helper.to_array(t) for t in self.body.initializer}.get(name)
        found = self.draft.weights.get(name) if found is None else found
        return (
            float(found.reshape(-1)[0]) if found is not None and found.size == 1 and found.dtype.kind in "iuf" else None
        )

    def _takes_row(self, node: onnx.NodeProto) -> bool:
        if node.op_type != "Gather" or node.domain or any(a.name == "axis" and a.i for a in node.attribute):
            return False
        value = self.values.get(node.input[0])
        if node.input[0] in self.own or value is None or value.shape is None or value.is_opaque:
            return False
        return self._count(node.input[1]) == 0 and self._is_scalar(node.input[1])

    def _is_scalar(self, name: str) -> bool:
        name = source_of(self.body, name, casts=True)
        given = next((s.initial for s in self.repeat.states if s.given == name), None)
        if given is not None:
            value = self.values.get(given)
            return value is not None and value.shape == ()
        info = next((i for i in self.body.input if i.name == name), None)
        return info is not None and info.type.tensor_type.HasField("shape") and not info.type.tensor_type.shape.dim

    def _size(self, name: str) -> Size | None:
        """The number of rows of a tensor."""
        dim = (self.values[name].shape or (None,))[0]
        if isinstance(dim, int):
            return number(dim)
        symbols = self.draft.symbols
        return None if dim is None or symbols is None else symbols.sizes.get(dim)

    def _number(self, name: str) -> Size | None:
        """An outer number, as a size."""
        name = source_of(self.body, name, casts=True)
        while (made := self.makers.get(name)) is not None and keeps_number(made):
            name = made.input[0]
        constant = self._constant(name)
        if constant is not None:
            return number(math.ceil(constant))
        symbols = self.draft.symbols
        found = None if symbols is None else symbols.contents.get(name)
        return None if found is None or found.size != 1 else found.flat[0]

    def _comparisons(self, name: str, size: Size) -> set[int] | None:
        """The conditions of which one is the conjunction, as the numbers that are added to the turn's.

        Each is that the sum is less than the number of rows. None if there is another one.
        """
        made = maker_of(self.body, source_of(self.body, name))
        if made is not None and of_node(made).symbol == "&":
            parts = [self._comparisons(part, size) for part in made.input]
            return None if None in parts else set().union(*(p for p in parts if p is not None))
        if made is None or of_node(made).symbol != "<" or self._number(made.input[1]) != size:
            return None
        count = self._count(made.input[0])
        return {count} if count in (0, 1) else None

    def _begins(self, name: str, size: Size) -> bool:
        """Whether the loop has its first turn if there is a row."""
        if not name:
            return True
        known = self.draft.weights.get(name)
        if known is not None:
            return bool(known.any())
        made = self.makers.get(name)
        if made is None:
            return False
        operator = of_node(made)
        if operator.copies or operator.symbol == "&":
            return all(self._begins(part, size) for part in made.input)
        return operator.symbol == "<" and self._constant(made.input[0]) == 0 and self._number(made.input[1]) == size

    def _keeps_shape(self, state: State) -> bool:
        """Whether a state has one shape in all turns, as those of a Scan have."""
        value, symbols = self.values.get(state.initial), self.draft.symbols
        if value is None or value.is_opaque or value.shape is None or None in value.shape:
            return False
        if symbols is not None:
            return not any(f"{state.given}.{axis}" in symbols.fresh for axis in range(len(value.shape)))
        result = self.values.get(state.result)
        return value.shape == () or (result is not None and result.shape == value.shape)


def _write(node: onnx.NodeProto, repeat: Repeat, found: _Found, values: Mapping[str, Value], namer: Namer) -> None:
    """Turn the Loop into a Scan."""
    body = repeat.body
    node.output.extend([""] * (len(body.output) - 1 - len(node.output)))
    for place in sorted(found.counters, reverse=True):
        drop_state(node, body, place)
    del node.input[:2]
    del body.input[:2]
    del body.output[0]
    for gather in found.gathers:
        value = values[gather.input[0]]
        info = body.input.add(name=namer.give(f"{gather.output[0]}_row", "v"))
        info.type.tensor_type.elem_type = np_type(value.dtype)
        node.input.append(gather.input[0])
        # A body that returns its input as it is would be computed wrongly by ONNX Runtime.
        gather.CopyFrom(copy_of(info.name, gather.output[0], gather.name))
    prune(body)
    node.op_type = "Scan"
    node.attribute.append(helper.make_attribute("num_scan_inputs", len(found.gathers)))
