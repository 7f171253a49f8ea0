"""The cost of computing a constant, estimated from shapes, so that import computes only affordable ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from heterocc.compiler.importer.estimates.flops import node_flops
from heterocc.compiler.operators.applied import texts_of
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import DTYPE_BYTES, Node, Value

MAX_GROWTH_BYTES = 1 << 25
"""The limit in bytes on constants at any one time, in addition to twice the model's size: 32 MiB, as a small model must
not make a large bundle. Nodes that would exceed it are computed at run time. A lowering has as much again for what it
computes from weights."""

MAX_WORK = 1 << 33
"""The limit in bytes on reads and writes of all computations of constants: some seconds on one core."""

_WORK_PER_WEIGHT = 64
FLOPS_PER_BYTE = 8
"""The number of multiplications in the time in which a core copies one byte of a large tensor."""

_UNKNOWN_LENGTH = 32
"""The length of the longest text form of a number."""

_COPIES_OF_TEXT = 16
"""The number of copies of texts, which are inside protos that every tool copies."""

_BYTES_PER_LISTED = 16
"""Memory of ONNX Runtime's shape inference for each byte of an integer vector, whose elements it lists."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a computation in bytes: `growth` of its results, `work` of reads, writes and converted arithmetic."""

    growth: int
    work: int


@dataclass(slots=True)
class Budget:
    """The remaining budget of one import for computing constants, shared by a graph and its bodies.

    `spent` means that a constant was too large, or of unknown size; no other tool may compute it either.
    """

    growth: int = MAX_GROWTH_BYTES
    work: int = MAX_WORK
    spent: bool = False

    @classmethod
    def for_weights(cls, weights: Mapping[str, np.ndarray]) -> Budget:
        """A budget for a model with these weights, so that each of them can be converted several times."""
        size = sum(array.nbytes for array in weights.values())
        return cls(MAX_GROWTH_BYTES + size, MAX_WORK + _WORK_PER_WEIGHT * size)

    def take(self, cost: Cost) -> bool:
        """Deduct a cost and return True; return False and deduct nothing if the budget is too small."""
        if cost.growth > self.growth or cost.work > self.work:
            self.spent = True
            return False
        self.growth -= cost.growth
        self.work -= cost.work
        return True

    def free(self, nbytes: int) -> None:
        """Return the memory of a constant that is no longer needed to the budget."""
        self.growth += nbytes


@dataclass(frozen=True, slots=True)
class Size:
    """An upper bound of a value's memory in bytes; `longest` is the length of its longest text."""

    nbytes: int
    longest: int = 0


def size_of_array(array: np.ndarray) -> Size:
    """The size of a constant."""
    if array.dtype != object:
        return Size(array.nbytes)
    longest = max((len(text) for text in array.flat), default=0)
    return _texts_of(array.size, longest)


def _texts_of(count: int, longest: int) -> Size:
    return Size(count * (_COPIES_OF_TEXT * longest + _UNKNOWN_LENGTH), longest)


def output_sizes(node: onnx.NodeProto, values: Mapping[str, Value], sizes: Mapping[str, Size]) -> list[Size] | None:
    """Upper bounds of the outputs of a node without bodies; None if a bound is unknown before it is run."""
    inputs = [sizes[name] for name in node.input if name]
    known = [_known(node, values.get(name), inputs) for name in node.output if name]
    if all(size is not None for size in known):
        return [size for size in known if size is not None]
    if node.domain:
        return None
    total = sum(size.nbytes for size in inputs)
    longest = max((size.longest for size in inputs), default=0)
    if of_node(node).chosen:
        return [Size(total, longest), *[Size(8 * total)] * (len(known) - 1)]
    if node.op_type == "NonZero":
        source = values.get(node.input[0])
        if source is not None and source.shape is not None and source.is_static:
            return [Size(8 * len(source.shape) * elements(source))]
    return None


def elements(value: Value) -> int:
    """Number of elements of a value whose shape is known."""
    return math.prod(value.numbers or ())


def _known(node: onnx.NodeProto, value: Value | None, inputs: list[Size]) -> Size | None:
    if value is None or value.shape is None or not value.is_static:
        return None
    if value.dtype in DTYPE_BYTES:
        return Size(value.nbytes)
    if value.dtype != "string":
        return None
    longest = sum(size.longest for size in inputs) + _UNKNOWN_LENGTH + max((len(t) for t in texts_of(node)), default=0)
    return _texts_of(elements(value), longest)


def node_cost(node: onnx.NodeProto, values: Mapping[str, Value], inputs: list[Size], outputs: list[Size]) -> Cost:
    """The cost of a node without bodies, whose inputs and outputs have these sizes."""
    read, written = sum(s.nbytes for s in inputs), sum(s.nbytes for s in outputs)
    work = read + written + flops(node, values) // FLOPS_PER_BYTE
    if of_node(node).steep:
        work += (read // 4) ** 2 // FLOPS_PER_BYTE
    if of_node(node).listed and len(outputs) == 1:
        value = values.get(node.output[0])
        if (
            value is not None
            and value.shape is not None
            and len(value.shape) == 1
            and value.dtype in ("int32", "int64")
        ):
            written *= _BYTES_PER_LISTED
    return Cost(written, work)


def flops(node: onnx.NodeProto, values: Mapping[str, Value]) -> int:
    """The operations of a node by the cost model; 0 if it has no rule for these shapes."""
    written = tuple(name for name in node.output if name)
    plain = Node(node.name or "n", node.op_type, tuple(name for name in node.input if name), written)
    try:
        return int(node_flops(node, plain, values))
    except (ArithmeticError, LookupError, ValueError):  # shapes that no valid node has
        return 0
