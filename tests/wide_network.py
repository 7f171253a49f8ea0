"""Classic networks of convolutions computed in float64, node by node, as a reference for float32."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray
Attributes = dict[str, Any]


def without_softmax(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without the softmax at its end, which hides errors in what precedes it."""
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    last = cut.graph.node[-1]
    if last.op_type == "Softmax":
        given = last.input[0]
        del cut.graph.node[-1]
        cut.graph.output[0].CopyFrom(helper.make_tensor_value_info(given, onnx.TensorProto.FLOAT, None))
    return cut


def compute(model: onnx.ModelProto, x: Array) -> Array:
    """The first output for one input, in float64 throughout. Raises KeyError for an operator that is not here."""
    values: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        values[tensor.name] = array.astype(np.float64) if array.dtype == np.float32 else array
    (fed,) = [i.name for i in model.graph.input if i.name not in values]
    values[fed] = x.astype(np.float64)
    for node in model.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        given = [values[name] for name in node.input if name]
        values[node.output[0]] = OPERATORS[node.op_type](attributes, *given)
    return values[model.graph.output[0].name]


def _windows(x: Array, attributes: Attributes, kernel: tuple[int, int], fill: float) -> list[Array]:
    """What each tap of a window sees, in the order of the taps: images of the size of the output."""
    top, left, bottom, right = attributes.get("pads", [0] * 4)
    down, across = attributes.get("strides", [1, 1])
    padded = np.pad(x, [(0, 0), (0, 0), (top, bottom), (left, right)], constant_values=fill)
    rows = (padded.shape[2] - kernel[0]) // down + 1
    columns = (padded.shape[3] - kernel[1]) // across + 1
    return [
        padded[:, :, i : i + (rows - 1) * down + 1 : down, j : j + (columns - 1) * across + 1 : across]
        for i, j in product(range(kernel[0]), range(kernel[1]))
    ]


def _conv(attributes: Attributes, x: Array, w: Array, bias: Array | None = None) -> Array:
    groups = attributes.get("group", 1)
    seen = _windows(x, attributes, w.shape[2:], 0.0)
    batch, (rows, columns) = x.shape[0], seen[0].shape[2:]
    weights = w.reshape(groups, w.shape[0] // groups, w.shape[1], -1)
    total = np.zeros((batch, groups, weights.shape[1], rows * columns))
    for tap, image in enumerate(seen):
        total += np.ascontiguousarray(weights[..., tap]) @ image.reshape(batch, groups, w.shape[1], rows * columns)
    result = total.reshape(batch, w.shape[0], rows, columns)
    return result if bias is None else result + bias.reshape(-1, 1, 1)


def _max_pool(attributes: Attributes, x: Array) -> Array:
    return np.max(_windows(x, attributes, tuple(attributes["kernel_shape"]), -np.inf), axis=0)


def _average_pool(attributes: Attributes, x: Array) -> Array:
    kernel = tuple(attributes["kernel_shape"])
    counted = np.ones_like(x)
    inside = np.sum(_windows(counted, attributes, kernel, attributes.get("count_include_pad", 0)), axis=0)
    return np.asarray(np.sum(_windows(x, attributes, kernel, 0.0), axis=0) / inside)


def _normal(attributes: Attributes, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    return x * factor.reshape(-1, 1, 1) + (bias - mean * factor).reshape(-1, 1, 1)


def _gemm(attributes: Attributes, a: Array, b: Array, c: Array) -> Array:
    a, b = (a.T if attributes.get("transA") else a), (b.T if attributes.get("transB") else b)
    return np.asarray(attributes.get("alpha", 1.0) * (a @ b) + attributes.get("beta", 1.0) * c)


def _reshape(attributes: Attributes, x: Array, shape: Array) -> Array:
    return x.reshape([x.shape[i] if n == 0 else int(n) for i, n in enumerate(shape)])


OPERATORS: dict[str, Callable[..., Array]] = {
    "Add": lambda _, a, b: a + b,
    "AveragePool": _average_pool,
    "BatchNormalization": _normal,
    "Concat": lambda attributes, *parts: np.concatenate(parts, attributes["axis"]),
    "Conv": _conv,
    "Dropout": lambda _, x, *rest: x,
    "Flatten": lambda _, x: x.reshape(x.shape[0], -1),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda _, x: x.mean((2, 3), keepdims=True),
    "MaxPool": _max_pool,
    "Relu": lambda _, x: np.maximum(x, 0),
    "Reshape": _reshape,
    "Sum": lambda _, *parts: sum(parts),
    "Transpose": lambda attributes, x: x.transpose(attributes["perm"]),
}
