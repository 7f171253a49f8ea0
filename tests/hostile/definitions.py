"""Results by the definitions of operators, for requests with which ONNX Runtime's are wrong or end its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.hostile.references import BATCHED
from tests.reference import reference_session

Array = np.ndarray[Any, Any]
Inputs = Sequence[Array | None]
Attributes = Mapping[str, Any]
Definition = Callable[[Inputs, Attributes], list[Array] | None]


def defined(model: bytes, feed: Mapping[str, Array]) -> list[Array] | None:
    """The outputs of a model of one node; None if its operator has no definition here, or not of this request."""
    graph = onnx.load_from_string(model).graph
    if len(graph.node) != 1:
        return None
    (node,) = graph.node
    name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
    if name not in _DEFINITIONS:
        return None
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer} | dict(feed)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    with np.errstate(all="ignore"):
        found = _DEFINITIONS[name]([known.get(name) for name in node.input], attributes)
    if found is None:
        return None
    by_name = dict(zip(node.output, found, strict=False))
    return [by_name[end.name] for end in graph.output]


def _input(inputs: Inputs, place: int) -> Array | None:
    return inputs[place] if place < len(inputs) else None


def _whole(value: Array | None, *, rows: bool = False) -> Array:
    """A zero point, or integers, as int64; one for each row is a column."""
    if value is None:
        return np.zeros((), np.int64)
    wide = value.astype(np.int64)
    return wide[..., None] if rows and wide.ndim == 1 and wide.size > 1 else wide


def _quantised(values: Array, scale: Array, zero: Array) -> Array:
    """Numbers as the nearest steps of a scale, within the dtype of the zero point."""
    limits = np.iinfo(zero.dtype)
    steps = np.rint(values / scale.astype(np.float64)) + zero.astype(np.float64)
    return np.clip(steps, limits.min, limits.max).astype(zero.dtype)


def _matmul_integer(inputs: Inputs, _: Attributes) -> list[Array] | None:
    a, b = inputs[0], inputs[1]
    assert a is not None and b is not None
    one = a.astype(np.int64) - _whole(_input(inputs, 2), rows=True)
    return [np.matmul(one, b.astype(np.int64) - _whole(_input(inputs, 3))).astype(np.int32)]


def _qlinear_matmul(inputs: Inputs, _: Attributes) -> list[Array] | None:
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = inputs[:8]
    assert a is not None and b is not None and zero is not None
    scales = [s for s in (a_scale, b_scale, scale) if s is not None]
    if len(scales) < 3 or any(s.size > 1 for s in (*scales, *(z for z in (a_zero, zero) if z is not None))):
        return None
    total = np.matmul(a.astype(np.int64) - _whole(a_zero), b.astype(np.int64) - _whole(b_zero))
    factor = scales[0].astype(np.float64) * scales[1].astype(np.float64)
    return [_quantised(total * factor, scales[2], zero)]


def _qgemm(inputs: Inputs, attributes: Attributes) -> list[Array] | None:
    a, a_scale, a_zero, b, b_scale, b_zero, bias, scale, zero = (_input(inputs, place) for place in range(9))
    assert a is not None and a_scale is not None and b is not None and b_scale is not None
    if a_scale.size > 1 or (a_zero is not None and a_zero.size > 1):
        return None
    one = a.astype(np.int64) - _whole(a_zero)
    other = b.astype(np.int64)
    one, other = (one.T if attributes.get("transA", 0) else one), (other.T if attributes.get("transB", 0) else other)
    total = np.matmul(one, other - _whole(b_zero)) + _whole(bias)
    factor = float(attributes.get("alpha", 1.0)) * a_scale.astype(np.float64) * b_scale.astype(np.float64)
    if scale is None or zero is None:
        return [(total * factor).astype(np.float32)]
    return [_quantised(total * factor, scale, zero)]


def _dynamic_quantise_matmul(inputs: Inputs, _: Attributes) -> list[Array] | None:
    a, b, bias = inputs[0], inputs[1], _input(inputs, 4)
    assert a is not None and b is not None
    if a.shape[-1]:
        return None
    zeros = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    return [zeros if bias is None else zeros + bias]


def _matmul_integer_to_float(inputs: Inputs, _: Attributes) -> list[Array] | None:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (_input(inputs, place) for place in range(7))
    assert a is not None and b is not None and a_scale is not None and b_scale is not None
    if a_scale.size > 1 or (a_zero is not None and a_zero.size > 1):
        return None
    total = np.matmul(a.astype(np.int64) - _whole(a_zero), b.astype(np.int64) - _whole(b_zero))
    scaled = total * (a_scale.astype(np.float64) * b_scale.astype(np.float64))
    return [(scaled if bias is None else scaled + bias).astype(np.float32)]


def _dft(inputs: Inputs, attributes: Attributes) -> list[Array] | None:
    """By NumPy's transform of float64: ONNX Runtime's of thousands of terms has two digits."""
    x, length, axis = (_input(inputs, place) for place in range(3))
    assert x is not None
    along = attributes.get("axis") if axis is None else int(axis)
    if along is None and x.ndim == 3:
        along = 1  # of all versions
    if along is None or not -x.ndim <= along < x.ndim or along % x.ndim == x.ndim - 1 or x.shape[-1] not in (1, 2):
        return None
    along %= x.ndim
    parts = x.astype(np.float64)
    numbers = parts[..., 0] + 1j * parts[..., 1] if x.shape[-1] == 2 else parts[..., 0]
    terms = None if length is None else int(length)
    if attributes.get("onesided", 0):
        if attributes.get("inverse", 0):
            return [np.fft.irfft(numbers, terms, axis=along)[..., None].astype(x.dtype)]
        found = np.fft.rfft(numbers.real, terms, axis=along)
    else:
        found = (np.fft.ifft if attributes.get("inverse", 0) else np.fft.fft)(numbers, terms, axis=along)
    return [np.stack([found.real, found.imag], -1).astype(x.dtype)]


def _sum(inputs: Inputs, attributes: Attributes) -> list[Array] | None:
    """Of integers, without those that leave the range of their dtype."""
    data, axes = inputs[0], _input(inputs, 1)
    assert data is not None
    if data.dtype.kind not in "iu":
        return None
    given = attributes.get("axes", ()) if axes is None else axes.tolist()
    if not len(given) and attributes.get("noop_with_empty_axes", 0):
        return [data]
    along = tuple({axis % data.ndim for axis in given}) if len(given) else None
    keep = bool(attributes.get("keepdims", 1))
    return [np.asarray(np.sum(data, axis=along, keepdims=keep, dtype=data.dtype))]


def _normalised(inputs: Inputs, attributes: Attributes) -> list[Array] | None:
    data = inputs[0]
    assert data is not None
    axes = tuple(attributes.get("axes", (0, 2, 3)))
    wide = data.astype(np.float64)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    return [(centred / (np.sqrt((centred * centred).mean(axis=axes, keepdims=True)) + 1e-9)).astype(data.dtype)]


def _with_a_feature(op_type: str, inputs: Inputs, attributes: Attributes) -> list[Array]:
    """The results of ONNX Runtime for a recurrent layer with one feature of zeros, with weights of zeros."""
    wide = [
        np.zeros((*a.shape[:2], 1), a.dtype) if place < 2 and a is not None else a for place, a in enumerate(inputs)
    ]
    given = {f"i{place}": array for place, array in enumerate(wide) if array is not None}
    outputs = [f"o{place}" for place in range(len(BATCHED[op_type]))]
    names = [f"i{place}" if array is not None else "" for place, array in enumerate(wide)]
    node = helper.make_node(op_type, names, outputs, **attributes)
    kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in given.items()}
    ends = [helper.make_tensor_value_info(name, kind, given[name].shape) for name, kind in kinds.items()]
    graph = helper.make_graph([node], "g", ends, [helper.make_empty_tensor_value_info(name) for name in outputs])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    results: list[Array] = reference_session(made).run(None, given)
    return results


def _recurrent(op_type: str) -> Definition:
    """Of a sequence without steps: no states, and the first one as the last. Of steps without features: as with zeros.

    For the latter ONNX Runtime adds to memory that it has not written: NaN, if that held some.
    """

    def states(inputs: Inputs, attributes: Attributes) -> list[Array] | None:
        data, weights = inputs[0], inputs[2]
        assert data is not None and weights is not None
        first = bool(attributes.get("layout", 0))
        batch, steps = data.shape[:2] if first else data.shape[1::-1]
        if steps and batch and not first and not data.shape[2]:
            return _with_a_feature(op_type, inputs, attributes)
        if steps:
            return None
        directions, hidden = weights.shape[0], weights.shape[2]
        shape = (batch, directions, hidden) if first else (directions, batch, hidden)
        last = [_input(inputs, place) for place in BATCHED[op_type][1:]]
        every = (batch, 0, directions, hidden) if first else (0, directions, batch, hidden)
        ends = [np.zeros(shape, data.dtype) if state is None else state for state in last]
        return [np.zeros(every, data.dtype), *ends]

    return states


_DEFINITIONS: Mapping[str, Definition] = {
    "DFT": _dft,
    "MatMulInteger": _matmul_integer,
    "QLinearMatMul": _qlinear_matmul,
    "com.microsoft::QGemm": _qgemm,
    "com.microsoft::DynamicQuantizeMatMul": _dynamic_quantise_matmul,
    "com.microsoft::MatMulIntegerToFloat": _matmul_integer_to_float,
    "ReduceSum": _sum,
    "MeanVarianceNormalization": _normalised,
    **{name: _recurrent(name) for name in BATCHED},
}
"""By operator. None of them has another known reason to differ from ONNX Runtime."""
