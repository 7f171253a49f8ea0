"""The steps of operators on sequences and optional values: calls of the runtime's own functions.

Registers hold a sequence as an array of tensors, and an optional value as what it holds, or nothing. The functions
share tensors, so that a sequence that grows in a loop does not copy them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx

from heterocc.artifacts.dtypes import container
from heterocc.compiler.importer.symbols.containers import touches_containers
from heterocc.compiler.lower.cpu.programs.functions import (
    AT,
    CHECK,
    ERASE,
    GET,
    HAS,
    INSERT,
    JOIN,
    LENGTH,
    NOTHING,
    SPLIT,
    TUPLE,
    fixed_sizes,
)
from heterocc.compiler.lower.cpu.programs.program_builder import Builder
from heterocc.compiler.lower.cpu.programs.steps import Argument, Invoke, Step, Take
from heterocc.compiler.operators.flow.containers import attribute_of


class Containers:
    """Adds the steps of nodes on sequences and optional values to a program."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    def handles(self, node: onnx.NodeProto) -> bool:
        """Whether a node is one of these."""
        if not touches_containers(node):
            return False
        return node.op_type != "Identity" or node.input[0] in self.b.symbols.elements

    def add(self, node: onnx.NodeProto, steps: list[Step]) -> None:
        """Add the steps of a node, and of the check of the tensor that it takes from a sequence."""
        b = self.b
        for name in (*filter(None, node.input), *node.output):
            self._require(node, name)
        given = [b.held(name) if name else None for name in node.input]
        b.close(steps)
        text = f"{node.op_type} '{node.name}'"
        if node.op_type == "Identity" or (node.op_type == "Optional" and given):
            steps.append(Take([(node.output[0], given[0] or "")]))
            return
        function, arguments = _CALLS[node.op_type](b, node, given)
        labelled = function not in (TUPLE, NOTHING, LENGTH, HAS)
        steps.append(Invoke(function, arguments, node.output[0], text if labelled else ""))
        if node.op_type in _TAKEN and node.output[0] not in b.symbols.elements:
            self._check(node.output[0], text, steps)

    def _require(self, node: onnx.NodeProto, name: str) -> None:
        b = self.b
        value = b.values.get(name)
        kind = None if value is None else container(value.dtype)
        dtype = None if value is None else value.dtype if kind is None else kind.dtype
        if value is None or (kind is None and value.is_opaque):
            raise b.refuse(node, f"the type of '{name}' is {'unknown' if value is None else value.dtype}")
        if dtype not in b.job.device.dtypes:
            raise b.refuse(node, f"'{name}' is {value.dtype}, which {b.job.device.name} does not compute")
        if kind is not None:
            if name not in b.symbols.elements:
                raise b.refuse(node, f"what '{name}' holds is not known")
        elif value.shape is None or None in value.shape:
            raise b.refuse(node, f"the rank or a size of '{name}' is not known")

    def _check(self, name: str, text: str, steps: list[Step]) -> None:
        """Check a tensor that the program did not compute: code relies on its rank and its fixed sizes."""
        expected = fixed_sizes(self.b.values[name].shape or ())
        steps.append(Invoke(CHECK, (name, expected), None, text))


_Given = list[str | None]
_Call = tuple[str, tuple[Argument, ...]]


def _second(given: _Given) -> str | None:
    return given[1] if len(given) > 1 else None


def _insert(_b: Builder, _node: onnx.NodeProto, given: _Given) -> _Call:
    return INSERT, (given[0], given[1], given[2] if len(given) > 2 else None)


def _split(b: Builder, node: onnx.NodeProto, given: _Given) -> _Call:
    lengths, keeps = _second(given), attribute_of(node, "keepdims", 1)
    rank = len(b.values[node.input[0]].shape or ())
    if lengths is not None and not keeps and len(b.values[lengths].shape or ()) == 0:
        raise b.refuse(node, "with keepdims=0 and one length, ONNX Runtime splits in another way than ONNX")
    return SPLIT, (given[0], lengths, attribute_of(node, "axis", 0) % rank, int(keeps or lengths is not None))


def _join(b: Builder, node: onnx.NodeProto, given: _Given) -> _Call:
    rank = len(b.values[node.output[0]].shape or ())
    return JOIN, (given[0], attribute_of(node, "axis", 0) % rank, attribute_of(node, "new_axis", 0))


_CALLS: Mapping[str, Callable[[Builder, onnx.NodeProto, _Given], _Call]] = MappingProxyType(
    {
        "ConcatFromSequence": _join,
        "Optional": lambda _b, _n, _g: (NOTHING, ()),
        "OptionalGetElement": lambda _b, _n, given: (GET, (given[0],)),
        "OptionalHasElement": lambda _b, _n, given: (HAS, (given[0] if given else None,)),
        "SequenceAt": lambda _b, _n, given: (AT, (given[0], given[1])),
        "SequenceConstruct": lambda _b, _n, given: (TUPLE, tuple(given)),
        "SequenceEmpty": lambda _b, _n, _g: (TUPLE, ()),
        "SequenceErase": lambda _b, _n, given: (ERASE, (given[0], _second(given))),
        "SequenceInsert": _insert,
        "SequenceLength": lambda _b, _n, given: (LENGTH, (given[0],)),
        "SplitToSequence": _split,
    }
)

_TAKEN = frozenset(["ConcatFromSequence", "OptionalGetElement", "SequenceAt"])
"""Operators whose results are tensors of which only the run knows that they are as expected."""
