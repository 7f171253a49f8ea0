"""Refusal of attributes that a converter did not read."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx
from onnx import helper

from heterocc.compiler.lower.converters.registry import (
    MICROSOFT,
    PREPARED,
    REQUIRED,
    RESULTS,
    SIZES,
    Context,
    divided,
)
from heterocc.compiler.operators.table import named
from heterocc.runtime.execute.ort_session import onnxruntime_package

FLAGS = frozenset(
    """align_corners allowzero antialias causal ceil_mode channels_last count_include_pad detect_negative
    detect_positive do_rotary exclude_outside exclusive fmod input_forget interleaved is_causal keepdims largest
    linear_before_reset noop_with_empty_axes normalize_routing_weights onesided reverse select_last_index
    sliding_window_cache sorted storage_order training_mode transA transB transBatchA transBatchB unidirectional
    upper""".split()
)
"""Integers that are 0 or 1 wherever they are. Another one means yes to some operators of ONNX Runtime, no to others."""


def may_be_unread(op_type: str, domain: str) -> frozenset[str]:
    """Attributes of an operator that a conversion may leave unread, whatever their values."""
    return frozenset(named(op_type, divided(domain)[1]).unread.split())


def require_read(ctx: Context) -> None:
    """Raise NotImplementedError for an attribute that was not read and has another value than the default.

    So is one of FLAGS with another value than 0 and 1.
    """
    node = ctx.node
    # Of the standard operators whose sizes a run computes, other converters read what the sizes follow from.
    part, domain = divided(node.domain)
    if part in (SIZES, PREPARED, REQUIRED) or (part == RESULTS and not domain):
        return
    known = may_be_unread(node.op_type, domain)
    for attribute in node.attribute:
        name = attribute.name
        if name in FLAGS and attribute.type == attribute.INT and attribute.i not in (0, 1):
            raise NotImplementedError(f"the attribute {name}={attribute.i} is not supported: it is 0 or 1")
        if name in ctx.attrs.seen or name in known:
            continue
        value = helper.get_attribute_value(attribute)
        if value != default_of(domain, node.op_type, name, ctx.opset):
            shown = value.decode(errors="replace") if isinstance(value, bytes) else value
            raise NotImplementedError(f"the attribute {name}={shown} is not supported")


def default_of(domain: str, op_type: str, name: str, opset: int) -> Any:
    """The default value of an attribute; None if it has none."""
    return _defaults(domain, op_type, opset).get(name)


@cache
def _defaults(domain: str, op_type: str, opset: int) -> dict[str, Any]:
    if domain == MICROSOFT:
        return _microsoft().get(op_type, {})
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return {}
    return {
        n: helper.get_attribute_value(a.default_value) for n, a in schema.attributes.items() if a.default_value.name
    }


@cache
def _microsoft() -> dict[str, dict[str, Any]]:
    """The defaults of the operators that ONNX Runtime adds, by operator and attribute.

    Integers without one in the schema are 0, as the operators' descriptions say.
    """
    state = onnxruntime_package().capi.onnxruntime_pybind11_state
    found: dict[str, dict[str, Any]] = {}
    for schema in state.get_all_operator_schema():
        known = found.setdefault(schema.name, {}) if schema.domain == MICROSOFT else {}
        for name, attribute in schema.attributes.items():
            if attribute._default_value:
                known[name] = helper.get_attribute_value(onnx.AttributeProto.FromString(attribute._default_value))
            elif attribute.type.name == "INT" and not attribute.required:
                known[name] = 0
    return found
