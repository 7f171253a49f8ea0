"""Nodes of old operator sets that ONNX's converter does not convert, or converts to others, written differently.

What they mean is taken from ONNX Runtime where ONNX's specification of the old version is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler.importer.draft.constants import constant_node, constants_within
from heterocc.compiler.importer.draft.draft import keep, set_nodes
from heterocc.compiler.importer.draft.names import names_in, unused
from heterocc.compiler.importer.draft.written import copy_of, written

_CHANNEL_SLOPES = 6
"""The last version of PRelu whose slope is a vector with a number for each channel, and is not broadcast."""

_SIMPLE_RESIZE = 10
"""The last version of Resize without attributes for coordinates and rounding."""

_FLAT_HARDMAX = 12
"""The last version of Hardmax over all axes from one on."""

_UPSAMPLE = 9
"""The last version of Upsample, which becomes Resize, and the only one whose scales may be computed."""

_EMPTY_MASK = 11
"""The last version of Dropout whose mask, where nothing is dropped, is all false in ONNX Runtime."""


def restated_before(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """The model with other nodes in place of those of the main graph whose meaning the converter would change."""
    wanted = {"Hardmax": _FLAT_HARDMAX, "Upsample": _UPSAMPLE}
    found = {n.op_type for n in model.graph.node if not n.domain and version <= wanted.get(n.op_type, -1)}
    if not found:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    if "Hardmax" in found:
        _rewrite(changed.graph, "Hardmax", _hardmax)
    if "Upsample" in found:
        _rewrite(changed.graph, "Upsample", lambda node, new: _upsample(changed.graph, node, new))
    return changed


def restate_after(model: onnx.ModelProto, version: int, types: Callable[[], Mapping[str, int]]) -> None:
    """Correct the nodes that the converter made of a model of an older version; `types` gives those of its values."""
    graph = model.graph
    constants = {t.name: t for t in graph.initializer}
    if version <= _CHANNEL_SLOPES:
        _rewrite(graph, "PRelu", _prelu)
    if version <= _SIMPLE_RESIZE:
        _rewrite(graph, "Resize", lambda node, new: _resize(graph, node, new, constants))
    if version <= _EMPTY_MASK:
        _rewrite(graph, "Dropout", lambda node, new: _dropout(node, new, types))
        _rewrite(graph, "Clip", lambda node, new: _clip(graph, node, new, types))


def _rewrite(
    graph: onnx.GraphProto,
    op_type: str,
    rule: Callable[[onnx.NodeProto, Callable[[str], str]], list[onnx.NodeProto]],
) -> None:
    """Replace the nodes of a type by those of a rule, which is given a function for names of new values."""
    if not any(node.op_type == op_type and not node.domain for node in graph.node):
        return
    taken = names_in(graph)

    def new(name: str) -> str:
        return unused(name, taken)

    def written() -> Iterator[onnx.NodeProto]:
        for node in graph.node:
            yield from rule(node, new) if node.op_type == op_type and not node.domain else [node]

    set_nodes(graph, list(written()))


def _upsample(graph: onnx.GraphProto, node: onnx.NodeProto, new: Callable[[str], str]) -> list[onnx.NodeProto]:
    """Upsample with computed scales, each times 1, or times the second element of a vector of one if it is below 1.

    So a run with such a scale is an error, as in ONNX Runtime, although Resize takes it.
    """
    if len(node.input) < 2 or any(t.name == node.input[1] for t in graph.initializer):
        return [node]
    scales = node.input[1]
    one, checked = new(f"{scales}_one"), new(f"{scales}_checked")
    ends = {"scales": scales, "one": one, "checked": checked}
    node.input[1] = checked
    return [
        constant_node(one, np.ones(1, np.float32)),
        *written(_CHECKED_SCALES, ends, lambda value: new(f"{scales}_{value}"), lambda made: _label(node, made)),
        node,
    ]


_CHECKED_SCALES = f"""
    below_1 = Less (scales, one)
    place = Cast <to = {TensorProto.INT64}> (below_1)
    factor = Gather (one, place)
    checked = Mul (scales, factor)
"""


def _label(node: onnx.NodeProto, made: onnx.NodeProto) -> str:
    """The name of a node that is written beside another one."""
    return f"{node.name}_{made.op_type}"


def _hardmax(node: onnx.NodeProto, new: Callable[[str], str]) -> list[onnx.NodeProto]:
    """Hardmax of a matrix that has all axes from one on as columns."""
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    text = f"""
        shape = Shape (data)
        flat = Flatten <axis = {axis}> (data)
        found = Hardmax <axis = 1> (flat)
        result = Reshape (found, shape)
    """
    ends = {"data": node.input[0], "result": node.output[0]}
    made = written(text, ends, lambda value: new(f"{node.output[0]}_{value}"), lambda made: _label(node, made))
    made[2].name = node.name
    return made


def _resize(
    graph: onnx.GraphProto, node: onnx.NodeProto, new: Callable[[str], str], constants: Mapping[str, onnx.TensorProto]
) -> list[onnx.NodeProto]:
    """Upsample and Resize: asymmetric; the nearest element is at or behind a place where an axis shrinks, else before.

    A Resize has one rounding for all axes, so these are two unless the scales are known and all shrink or all grow.
    """
    keep(node.attribute, lambda a: a.name not in ("coordinate_transformation_mode", "nearest_mode"))
    node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
    mode = next((a.s for a in node.attribute if a.name == "mode"), b"nearest")
    scales = constants.get(node.input[2])
    known = None if scales is None else numpy_helper.to_array(scales)
    if mode != b"nearest" or (known is not None and not np.any(known < 1)):
        node.attribute.append(helper.make_attribute("nearest_mode", "floor"))
        return [node]
    if known is not None and not np.any(known > 1):
        node.attribute.append(helper.make_attribute("nearest_mode", "ceil"))
        return [node]
    result = node.output[0]
    shrunk, one = new(f"{result}_shrunk"), new(f"{result}_one")
    parts = []
    made = []
    graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), one))
    for op_type in ("Min", "Max"):
        parts.append(new(f"{result}_{op_type.lower()}"))
        if known is None:
            made.append(helper.make_node(op_type, [node.input[2], one], [parts[-1]], f"{node.name}_{op_type}"))
        else:
            rule = np.minimum if op_type == "Min" else np.maximum
            graph.initializer.append(numpy_helper.from_array(rule(known, np.float32(1)), parts[-1]))
    first, second = onnx.NodeProto(), node
    first.CopyFrom(node)
    first.name = f"{node.name}_shrunk"
    first.input[2], first.output[0] = parts[0], shrunk
    second.input[0], second.input[2] = shrunk, parts[1]
    first.attribute.append(helper.make_attribute("nearest_mode", "ceil"))
    second.attribute.append(helper.make_attribute("nearest_mode", "floor"))
    return [*made, first, second]


def _dropout(
    node: onnx.NodeProto, new: Callable[[str], str], types: Callable[[], Mapping[str, int]]
) -> list[onnx.NodeProto]:
    """The data, and a mask of zeros."""
    if len(node.output) < 2 or not node.output[1]:
        return [node]
    data, result, mask = node.input[0], node.output[0], node.output[1]
    kind = types().get(mask, TensorProto.BOOL)
    text = """
        shape = Shape (data)
        mask = ConstantOfShape (shape)
    """
    ends = {"data": data, "mask": mask}
    made = written(text, ends, lambda value: new(f"{mask}_{value}"), lambda made: _label(node, made))
    made[1].attribute.append(helper.make_attribute("value", helper.make_tensor("zero", kind, [1], [0])))
    return [copy_of(data, result, node.name), *made]


def _prelu(node: onnx.NodeProto, new: Callable[[str], str]) -> list[onnx.NodeProto]:
    """A slope for each channel, which is the second dimension."""
    ends = {"data": node.input[0], "slope": node.input[1], "result": node.output[0]}
    made = written(_CHANNELWISE, ends, lambda value: new(f"{node.output[0]}_{value}"), lambda made: _label(node, made))
    made[-1].name = node.name
    return made


_CHANNELWISE = """
    behind = Shape <start = 2> (data)
    rank = Shape (behind)
    ones = ConstantOfShape <value = int64[1] {1}> (rank)
    every = Constant <value = int64[1] {-1}> ()
    wanted = Concat <axis = 0> (every, ones)
    channels = Reshape (slope, wanted)
    result = PRelu (data, channels)
"""


def _clip(
    graph: onnx.GraphProto, node: onnx.NodeProto, new: Callable[[str], str], types: Callable[[], Mapping[str, int]]
) -> list[onnx.NodeProto]:
    """Clip of other numbers than float32, which the converter's bounds are; those by default let infinities through."""
    kind = types().get(node.input[0])
    if kind not in (TensorProto.FLOAT16, TensorProto.DOUBLE):
        return [node]
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    known = constants_within(graph)
    node.input.extend([""] * (3 - len(node.input)))
    for place, default in ((1, -np.inf), (2, np.inf)):
        with np.errstate(over="ignore"):
            bound = known[node.input[place]] if node.input[place] else np.array(default)
            node.input[place] = new(f"{node.output[0]}_bound")
            graph.initializer.append(numpy_helper.from_array(bound.astype(dtype), node.input[place]))
    return [node]
