"""Nodes that TVM's importer converts wrongly without an error, by operator and attributes.

Each entry was found by running ONNX's node tests. Operators with a converter in `converters` are not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx


def known_wrong(node: onnx.NodeProto) -> str | None:
    """The reason why the importer's result for a node is wrong, or None. Depends on attributes and arity only."""
    if node.domain not in ("", "ai.onnx"):
        return None
    rule = _RULES.get(node.op_type)
    return rule(node) if rule is not None else None


_RULES: Mapping[str, Callable[[onnx.NodeProto], str | None]] = MappingProxyType({})
"""A rule for each operator with such a converter; none has one now."""
