"""Refusal of attributes that a converter did not read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx
from onnx import helper

from heterocc.compiler.lower.converters.registry import (
    MICROSOFT,
    ML,
    PREPARED,
    REQUIRED,
    RESULTS,
    SIZES,
    Context,
    own_converter,
)
from heterocc.runtime.execute.ort_session import onnxruntime_package

_PARTS = frozenset({SIZES, PREPARED, REQUIRED})
"""Domains of converters that compute a part of what an operator means."""

_WINDOWS = "kernel_shape storage_order"
_RESIZING = "antialias coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value"
_NORMS = "q_norm_epsilon k_norm_epsilon qk_norm_epsilon"

_MAY_BE_UNREAD: Mapping[str, frozenset[str]] = {
    op_type: frozenset(names.split())
    for op_type, names in {
        # The result's shape or type, or another input, says the same.
        "BitCast": "to",
        "Cast": "to saturate",
        "CastLike": "saturate",
        "Conv": _WINDOWS,
        "ConvInteger": _WINDOWS,
        "ConvTranspose": f"{_WINDOWS} output_shape",
        "DeformConv": _WINDOWS,
        "DynamicQuantizeLSTM": "hidden_size",
        "Bernoulli": "dtype",
        "EyeLike": "dtype",
        "Flatten": "axis",
        "FusedConv": _WINDOWS,
        "GRU": "hidden_size",
        "LSTM": "hidden_size",
        "MaxUnpool": "kernel_shape pads strides",
        "Multinomial": "dtype",
        "QLinearConv": _WINDOWS,
        "RNN": "hidden_size",
        "RandomNormal": "dtype shape",
        "RandomNormalLike": "dtype",
        "RandomUniform": "dtype shape",
        "RandomUniformLike": "dtype",
        "Range": "stash_type",
        "Reshape": "allowzero",
        "Split": "num_outputs",
        "Squeeze": "axes",
        "Unsqueeze": "axes",
        # They have no meaning for the numbers in the result, or for inference.
        "Attention": "mask_filter_value qk_matmul_output_mode softmax_precision",
        "BatchNormalization": "momentum",
        "Dropout": "ratio seed",
        "GroupNormalization": "stash_type",
        "LayerNormalization": "stash_type",
        "LinearClassifier": "multi_class",
        "MatMulNBits": "accuracy_level",
        "RMSNormalization": "stash_type",
        "TopK": "sorted",
        "TreeEnsembleClassifier": "nodes_hitrates nodes_hitrates_as_tensor",
        "TreeEnsembleRegressor": "nodes_hitrates nodes_hitrates_as_tensor",
        "TreeEnsemble": "nodes_hitrates",
        # They have one only for a form of the operator in which they are read.
        "Concat": "axis",
        "DequantizeLinear": "axis output_dtype",
        "FusedGemm": "beta",
        "Gemm": "beta",
        "GroupQueryAttention": f"rotary_interleaved {_NORMS}",
        "LabelEncoder": "default_float default_int64 default_string default_tensor",
        "MaxPool": _WINDOWS,
        "MultiHeadAttention": "mask_filter_value",
        "QuantizeLinear": "axis output_dtype saturate",
        "Resize": f"{_RESIZING} keep_aspect_ratio_policy nearest_mode",
        "SVMClassifier": "kernel_params",
        "SVMRegressor": "kernel_params",
    }.items()
}
"""Attributes that a conversion may leave unread, whatever their values."""

_REDUCTIONS = frozenset({"noop_with_empty_axes"})
"""Attributes that reductions read if they have no axes."""


def require_read(ctx: Context) -> None:
    """Raise NotImplementedError for an attribute that was not read and has another value than the default."""
    node = ctx.node
    # Of the standard operators whose sizes a run computes, other converters read what the sizes follow from.
    if node.domain in _PARTS or (node.domain == RESULTS and own_converter(MICROSOFT, node.op_type) is None):
        return
    known = _MAY_BE_UNREAD.get(node.op_type, frozenset())
    for attribute in node.attribute:
        name = attribute.name
        if name in ctx.attrs.seen or name in known or (name in _REDUCTIONS and node.op_type.startswith("Reduce")):
            continue
        value = helper.get_attribute_value(attribute)
        if value != default_of(node.domain, node.op_type, name, ctx.opset):
            shown = value.decode(errors="replace") if isinstance(value, bytes) else value
            raise NotImplementedError(f"the attribute {name}={shown} is not supported")


def default_of(domain: str, op_type: str, name: str, opset: int) -> Any:
    """The default value of an attribute; None if it has none."""
    for found in _schemas(domain, op_type, opset):
        known = found.get(name)
        if known is not None:
            return known
    return None


@cache
def _schemas(domain: str, op_type: str, opset: int) -> tuple[dict[str, Any], ...]:
    domains = ("", ML, MICROSOFT) if domain == RESULTS else (domain,)
    return tuple(_defaults(domain, op_type, opset) for domain in domains)


def _defaults(domain: str, op_type: str, opset: int) -> dict[str, Any]:
    if domain == MICROSOFT:
        return dict(_microsoft().get(op_type, {}))
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
