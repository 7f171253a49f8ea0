"""Nodes for which TVM's importer gives wrong numbers without saying so, by operator and attributes.

Each entry was found by running ONNX's own node tests. What a converter of `relax_converters` covers is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper

from heterocc.passes.graph import Value


def known_wrong(node: onnx.NodeProto) -> str | None:
    """Why the importer's result for this node cannot be trusted, or None. Knows attributes and arity, no shapes."""
    if node.domain not in ("", "ai.onnx"):
        return None
    rule = _RULES.get(node.op_type)
    return rule(node) if rule is not None else None


def known_wrong_for(
    node: onnx.NodeProto, values: Mapping[str, Value], constants: Mapping[str, np.ndarray[Any, Any]]
) -> str | None:
    """As `known_wrong`, for what only shapes and constants tell: `values` and `constants` are the graph's, by name."""
    if node.domain not in ("", "ai.onnx"):
        return None
    rule = _SHAPED.get(node.op_type)
    return rule(node, values, constants) if rule is not None else None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _input(node: onnx.NodeProto, index: int) -> bool:
    return len(node.input) > index and bool(node.input[index])


def _output(node: onnx.NodeProto, index: int) -> bool:
    return len(node.output) > index and bool(node.output[index])


def _dropout(node: onnx.NodeProto) -> str | None:
    return "Dropout in training mode is random" if _input(node, 2) else None


def _batch_normalization(node: onnx.NodeProto) -> str | None:
    if _attributes(node).get("training_mode", 0) or any(_output(node, i) for i in range(1, len(node.output))):
        return "BatchNormalization in training mode: the importer ignores the batch statistics"
    return None


def _roi_align(node: onnx.NodeProto) -> str | None:
    if _attributes(node).get("mode", b"avg") == b"max":
        return "RoiAlign with mode=max: the importer takes the maximum of other samples than ONNX"
    return None


def _conv_transpose(node: onnx.NodeProto) -> str | None:
    attributes = _attributes(node)
    if attributes.get("output_shape"):
        return "ConvTranspose with output_shape: the importer ignores it"
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return "ConvTranspose with auto_pad: the importer pads differently"
    return None


def _is_inf(node: onnx.NodeProto) -> str | None:
    attributes = _attributes(node)
    if not (attributes.get("detect_negative", 1) and attributes.get("detect_positive", 1)):
        return "IsInf of one sign: the importer detects both"
    return None


def _cosh(_node: onnx.NodeProto) -> str | None:
    return "Cosh: TVM generates no code for it"


def _non_max_suppression(_node: onnx.NodeProto) -> str | None:
    return "NonMaxSuppression: the importer differs from ONNX for boxes at the IoU threshold"


_RULES: Mapping[str, Callable[[onnx.NodeProto], str | None]] = MappingProxyType(
    {
        "BatchNormalization": _batch_normalization,
        "ConvTranspose": _conv_transpose,
        "Cosh": _cosh,
        "Dropout": _dropout,
        "IsInf": _is_inf,
        "NonMaxSuppression": _non_max_suppression,
        "RoiAlign": _roi_align,
    }
)


def _empty_extremum(
    node: onnx.NodeProto, values: Mapping[str, Value], _constants: Mapping[str, np.ndarray[Any, Any]]
) -> str | None:
    if 0 in (values[node.input[0]].shape or ()):
        return f"{node.op_type} of an empty tensor: the importer starts from the smallest number, ONNX from infinity"
    return None


def _mod(
    node: onnx.NodeProto, values: Mapping[str, Value], _constants: Mapping[str, np.ndarray[Any, Any]]
) -> str | None:
    if values[node.input[0]].dtype.startswith("float") and not _attributes(node).get("fmod", 0):
        return "Mod of floating-point numbers with fmod=0: the importer gives NaN for an infinite divisor"
    return None


def _resize(
    node: onnx.NodeProto, values: Mapping[str, Value], constants: Mapping[str, np.ndarray[Any, Any]]
) -> str | None:
    attributes = _attributes(node)
    if attributes.get("antialias", 0):
        return "Resize with antialias: the importer ignores it"
    scales = constants.get(node.input[2]) if _input(node, 2) else None
    shape = values[node.input[0]].shape
    if scales is None or not scales.size or shape is None or len(scales) != len(shape):
        return None
    # Scales are float32: 3 x 0.6666667 is meant to be whole.
    sizes = [(d or 0) * s for d, s in zip(shape, scales.tolist(), strict=True)]
    exact = all(abs(size - round(size)) <= 1e-6 * max(1.0, size) for size in sizes)
    if not exact and attributes.get("coordinate_transformation_mode", b"half_pixel") != b"align_corners":
        return "Resize by scales that give no whole size: the importer computes with other scales"
    return None


_SHAPED: Mapping[
    str,
    Callable[[onnx.NodeProto, Mapping[str, Value], Mapping[str, np.ndarray[Any, Any]]], str | None],
] = MappingProxyType({"Mod": _mod, "ReduceMax": _empty_extremum, "ReduceMin": _empty_extremum, "Resize": _resize})
