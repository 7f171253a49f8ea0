"""Nodes that TVM's importer converts wrongly without an error, by operator and attributes.

Each entry was found by running ONNX's node tests. Operators with a converter in `converters` are not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import onnx
from onnx import helper


def known_wrong(node: onnx.NodeProto) -> str | None:
    """The reason why the importer's result for a node is wrong, or None. Depends on attributes and arity only."""
    if node.domain not in ("", "ai.onnx"):
        return None
    rule = _RULES.get(node.op_type)
    return rule(node) if rule is not None else None


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def _roi_align(node: onnx.NodeProto) -> str | None:
    if _attributes(node).get("mode", b"avg") == b"max":
        return "RoiAlign with mode=max: the importer takes the maximum of different samples than ONNX"
    return None


_RULES: Mapping[str, Callable[[onnx.NodeProto], str | None]] = MappingProxyType(
    {
        "RoiAlign": _roi_align,
    }
)
