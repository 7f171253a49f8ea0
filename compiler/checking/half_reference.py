"""Half precision in ONNX Runtime: a model that rounds the values that a device may store in float16.

It measures the effect of rounding alone on a result, as a limit for the result of a device that rounds.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler.importer.draft.written import written
from heterocc.compiler.lower.half.policy import LARGEST
from heterocc.compiler.operators.table import of_node

SCALE = "half/scale"
"""The input of a rounding model with the unit in which values are rounded; each unit gives other roundings."""

SCALES = (1.0, 1.19, 1.41, 1.68)
"""Units of four different roundings; no ratio of two is a power of two."""

_OLDEST = 8
"""The first operator set in which Min and Max broadcast; in models of older ones only weights are rounded."""


def round_values(model: onnx.ModelProto, values: Collection[str], weights: Collection[str]) -> None:
    """Round `values` after the nodes that write them, and those of `weights` that the model holds itself.

    Numbers beyond float16's range are unchanged, because their overflow on a device is an error of the device.
    Adds the input `SCALE` if a value is rounded.
    """
    graph = model.graph
    for tensor in graph.initializer:
        if tensor.name in weights and not tensor.external_data:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(numpy_helper.from_array(rounded(array), tensor.name))
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    nodes: list[onnx.NodeProto] = []
    found = False
    for node in graph.node:
        nodes.append(node)
        for index, name in enumerate(node.output):
            if name in values and opset >= _OLDEST:
                node.output[index] = f"{name}/raw"
                nodes += _rounding(f"{name}/raw", name)
                found = True
    if not found:
        return
    del graph.node[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info(SCALE, TensorProto.FLOAT, []))
    limits = {"half/largest": LARGEST, "half/smallest": -LARGEST}
    graph.initializer.extend(numpy_helper.from_array(np.array(v, np.float32), n) for n, v in limits.items())


def round_products(model: onnx.ModelProto, nodes: Collection[str]) -> None:
    """Round the float32 factors that `nodes` multiply to bfloat16; a third input, such as a bias, is unchanged.

    Adds the input `SCALE` if a factor is rounded.
    """
    graph = model.graph
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    known = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    known.update({t.name: t.data_type for t in graph.initializer})
    made: dict[str, str] = {}
    steps: list[onnx.NodeProto] = []
    for node in graph.node:
        factors = of_node(node).factors if node.name in nodes and opset >= _OLDEST else ()
        for index, name in enumerate(node.input):
            if index not in factors or known.get(name) != TensorProto.FLOAT:
                continue
            if name not in made:
                made[name] = f"{name}/bfloat"
                steps += _splitting(name, made[name])
            node.input[index] = made[name]
        steps.append(node)
    if not made:
        return
    del graph.node[:]
    graph.node.extend(steps)
    if not any(i.name == SCALE for i in graph.input):
        graph.input.append(helper.make_tensor_value_info(SCALE, TensorProto.FLOAT, []))
    graph.initializer.append(numpy_helper.from_array(np.array(_SPLIT, np.float32), "bfloat/split"))


_SPLIT = 2.0**16 + 1
"""Dekker's factor that leaves 8 of the 24 bits of a significand: y - (y - x), where y = x * factor."""


def _splitting(source: str, target: str) -> list[onnx.NodeProto]:
    """target = bfloat16(source * scale) / scale, in float32."""
    text = """
        scaled = Mul (source, unit)
        product = Mul (scaled, split)
        low = Sub (product, scaled)
        high = Sub (product, low)
        target = Div (high, unit)
    """
    return _written(text, source, target, split="bfloat/split")


def _written(text: str, source: str, target: str, **others: str) -> list[onnx.NodeProto]:
    given = {"source": source, "target": target, "unit": SCALE, **others}
    return written(text, given, lambda value: f"{target}/{value}", lambda _: "")


def rounded(array: np.ndarray) -> np.ndarray:
    """A float32 array rounded to float16 and back."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(array.astype(np.float16).astype(np.float32), order="C")


def _rounding(source: str, target: str) -> list[onnx.NodeProto]:
    """target = source + (half(y) - y) / scale, where y = clip(source * scale)."""
    text = f"""
        scaled = Mul (source, unit)
        below = Min (scaled, largest)
        bounded = Max (below, smallest)
        half = Cast <to = {TensorProto.FLOAT16}> (bounded)
        single = Cast <to = {TensorProto.FLOAT}> (half)
        error = Sub (single, bounded)
        change = Div (error, unit)
        target = Add (source, change)
    """
    return _written(text, source, target, largest="half/largest", smallest="half/smallest")
