"""Integer products that ONNX Runtime computes exactly on every CPU.

On x86 without VNNI its products of uint8 and int8 add pairs of products in 16 bits, which saturate. Products of two
uint8 are exact there, so factors of int8 are written as uint8 with a zero point that is larger by 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OFFSET = 128
"""The difference between the codes of a number as uint8 and as int8."""

_OFFSET, _ZERO = "exact/offset", "exact/zero"


@dataclass(frozen=True, slots=True)
class _Places:
    """The inputs of an operator that are factors, each with the place of its zero point.

    `data` is the factor that the weights multiply, if the operator is given it in 8 bits. `result` is the place of the
    zero point of the output, if that has 8 bits and must have the dtype of `data`.
    """

    factors: Mapping[int, int]
    data: int | None = 0
    result: int | None = None


_OPERATORS = {
    ("", "MatMulInteger"): _Places({0: 2, 1: 3}),
    ("", "ConvInteger"): _Places({0: 2, 1: 3}),
    ("", "QLinearMatMul"): _Places({0: 2, 3: 5}, result=7),
    ("", "QLinearConv"): _Places({0: 2, 3: 5}, result=7),
    ("com.microsoft", "MatMulIntegerToFloat"): _Places({0: 4, 1: 5}),
    ("com.microsoft", "QGemm"): _Places({0: 2, 3: 5}, result=8),
    ("com.microsoft", "QAttention"): _Places({0: 6, 1: 7}),
    ("com.microsoft", "DynamicQuantizeMatMul"): _Places({1: 3}, data=None),
    ("com.microsoft", "DynamicQuantizeLSTM"): _Places({1: 9, 2: 11}, data=None),
}


def with_exact_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or one in its place that computes the same integers, in which no product has a factor of int8.

    Values keep their names and dtypes. Factors whose dtype the model does not state are left.
    """
    if not has_products(model):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    constants: dict[str, np.ndarray] = {}
    _change(changed.graph, "", {}, constants)
    changed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return changed


def has_products(model: onnx.ModelProto) -> bool:
    """Return whether the model has products of 8-bit integers."""
    return any(_places(node) for node in nodes_within(model.graph))


def nodes_within(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a graph and of the bodies in it."""
    found = list(graph.node)
    for node in graph.node:
        for body in _bodies(node):
            found += nodes_within(body)
    return found


def _bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in ([a.g] if a.type == onnx.AttributeProto.GRAPH else a.graphs)]


def _places(node: onnx.NodeProto) -> _Places | None:
    domain = "" if node.domain == "ai.onnx" else node.domain
    return _OPERATORS.get((domain, node.op_type))


@dataclass
class _Changes:
    """The changed nodes of a graph, with the values that are already converted, and the model's new constants.

    `suffix` makes names of values differ from those in the graphs around it.
    """

    suffix: str
    dtypes: Mapping[str, int]
    constants: dict[str, np.ndarray]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)

    def unsigned(self, name: str) -> str:
        """The name of an int8 value as uint8."""
        if name not in self.made:
            self.made[name] = f"{name}/uint8{self.suffix}"
            self._shift(name, self.made[name], "Add", TensorProto.UINT8)
        return self.made[name]

    def signed(self, name: str, result: str) -> None:
        """Write a uint8 value as int8 to `result`."""
        self._shift(name, result, "Sub", TensorProto.INT8)

    def _shift(self, name: str, result: str, operator: str, to: int) -> None:
        self.constants[_OFFSET] = np.array(OFFSET, np.int32)
        wide, moved = f"{result}/wide", f"{result}/moved"
        self.nodes.append(helper.make_node("Cast", [name], [wide], to=TensorProto.INT32))
        self.nodes.append(helper.make_node(operator, [wide, _OFFSET], [moved]))
        self.nodes.append(helper.make_node("Cast", [moved], [result], to=to))

    def zero(self) -> str:
        """The name of a zero point of 0 as uint8."""
        self.constants[_ZERO] = np.array(OFFSET, np.uint8)
        return _ZERO


def _change(graph: onnx.GraphProto, suffix: str, outside: Mapping[str, int], constants: dict[str, np.ndarray]) -> None:
    """Change the products of a graph and of its bodies; `outside` has the dtypes of values around it."""
    known = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    changes = _Changes(suffix, {**outside, **known, **{t.name: t.data_type for t in graph.initializer}}, constants)
    for number, node in enumerate(graph.node):
        for branch, body in enumerate(_bodies(node)):
            _change(body, f"{suffix}/{number}.{branch}", changes.dtypes, constants)
        places = _places(node)
        changed = False if places is None else _change_node(node, places, changes)
        if not changed:
            changes.nodes.append(node)
    del graph.node[:]
    graph.node.extend(changes.nodes)


def _change_node(node: onnx.NodeProto, places: _Places, changes: _Changes) -> bool:
    """Add the node with factors of uint8, or return False if it has such ones."""
    dtypes = {place: changes.dtypes.get(node.input[place]) for place in places.factors}
    signed = [place for place, dtype in dtypes.items() if dtype == TensorProto.INT8]
    unsigned_weights = any(dtype == TensorProto.UINT8 for place, dtype in dtypes.items() if place != places.data)
    if not signed or unsigned_weights:
        return False
    new = onnx.NodeProto()
    new.CopyFrom(node)
    for place in signed:
        zero = places.factors[place]
        new.input.extend([""] * (zero + 1 - len(new.input)))
        new.input[place] = changes.unsigned(node.input[place])
        new.input[zero] = changes.unsigned(new.input[zero]) if new.input[zero] else changes.zero()
    result = places.result
    narrow = result is not None and len(node.input) > result and node.input[result] != ""
    if places.data in signed and narrow:
        assert result is not None
        new.input[result] = changes.unsigned(node.input[result])
        new.output[0] = f"{node.output[0]}/uint8"
        changes.nodes.append(new)
        changes.signed(new.output[0], node.output[0])
    else:
        changes.nodes.append(new)
    return True
