"""Integer products that ONNX Runtime computes exactly on every CPU.

On x86 without VNNI its products of uint8 and int8 add pairs of products in 16 bits, which saturate. Products of two
uint8 are exact there, so factors of int8 are written as uint8 with a zero point that is larger by 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from heterocc.compiler.importer.draft.draft import bodies, nodes_of
from heterocc.compiler.importer.draft.written import written
from heterocc.compiler.operators.record import ByteProduct
from heterocc.compiler.operators.table import of_node

OFFSET = 128
"""The difference between the codes of a number as uint8 and as int8."""

_OFFSET, _ZERO = "exact/offset", "exact/zero"

_UNSIGNED = f"""
    wide = Cast <to = {TensorProto.INT32}> (value)
    moved = Add (wide, offset)
    result = Cast <to = {TensorProto.UINT8}> (moved)
"""
_SIGNED = f"""
    wide = Cast <to = {TensorProto.INT32}> (value)
    moved = Sub (wide, offset)
    result = Cast <to = {TensorProto.INT8}> (moved)
"""


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
    return any(of_node(node).byte_product for node in nodes_of(model.graph.node))


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
            self._write(_UNSIGNED, name, self.made[name])
        return self.made[name]

    def signed(self, name: str, result: str) -> None:
        """Write a uint8 value as int8 to `result`."""
        self._write(_SIGNED, name, result)

    def _write(self, text: str, name: str, result: str) -> None:
        self.constants[_OFFSET] = np.array(OFFSET, np.int32)
        given = {"value": name, "offset": _OFFSET, "result": result}
        self.nodes += written(text, given, lambda part: f"{result}/{part}", lambda _: "")

    def zero(self) -> str:
        """The name of a zero point of 0 as uint8."""
        self.constants[_ZERO] = np.array(OFFSET, np.uint8)
        return _ZERO


def _change(graph: onnx.GraphProto, suffix: str, outside: Mapping[str, int], constants: dict[str, np.ndarray]) -> None:
    """Change the products of a graph and of its bodies; `outside` has the dtypes of values around it."""
    known = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    changes = _Changes(suffix, {**outside, **known, **{t.name: t.data_type for t in graph.initializer}}, constants)
    for number, node in enumerate(graph.node):
        for branch, body in enumerate(bodies(node)):
            _change(body, f"{suffix}/{number}.{branch}", changes.dtypes, constants)
        places = of_node(node).byte_product
        changed = False if places is None else _change_node(node, places, changes)
        if not changed:
            changes.nodes.append(node)
    del graph.node[:]
    graph.node.extend(changes.nodes)


def _change_node(node: onnx.NodeProto, places: ByteProduct, changes: _Changes) -> bool:
    """Add the node with factors of uint8, or return False if it has such ones."""
    dtypes = {place: changes.dtypes.get(node.input[place]) for place in places.zeros}
    signed = [place for place, dtype in dtypes.items() if dtype == TensorProto.INT8]
    unsigned_weights = any(dtype == TensorProto.UINT8 for place, dtype in dtypes.items() if place != places.data)
    if not signed or unsigned_weights:
        return False
    new = onnx.NodeProto()
    new.CopyFrom(node)
    for place in signed:
        zero = places.zeros[place]
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
