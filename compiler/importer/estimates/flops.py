"""Floating-point operations of a node, from its shapes; a multiply and an add count as two."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx

from heterocc.passes.graph import Node, Value

Shape = tuple[int, ...]

_MOVES = frozenset(
    "Cast CastLike Compress Concat Constant ConstantOfShape DepthToSpace Dropout Expand EyeLike Flatten Gather"
    " GatherElements GatherND Identity OneHot Pad Range Reshape ReverseSequence ScatterElements ScatterND Shape Size"
    " Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where".split()
)
"""Operators that only move data or compute shapes, without floating-point operations."""

_PER_ELEMENT: Mapping[str, float] = {
    **dict.fromkeys("Exp Log Sqrt Reciprocal Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh Acosh Atanh".split(), 8),
    **dict.fromkeys("Erf Sigmoid Softplus Pow Mish Gelu FastGelu QuickGelu BiasGelu Swish Elu Selu Celu".split(), 10),
    **dict.fromkeys("Softmax LogSoftmax".split(), 12),
    **dict.fromkeys("LayerNormalization InstanceNormalization GroupNormalization RMSNormalization".split(), 8),
    **dict.fromkeys("SkipLayerNormalization LpNormalization MeanVarianceNormalization".split(), 8),
    **dict.fromkeys("BatchNormalization HardSigmoid HardSwish".split(), 2),
    "LRN": 12,
    "Resize": 7,
    "Upsample": 7,
}
"""Operations per element of the output; 1 for operators that are not listed."""


def node_flops(proto: onnx.NodeProto, node: Node, values: Mapping[str, Value]) -> float:
    """Operations of one node; 0 if a shape is unknown before a run."""
    if node.op_type in _MOVES:
        return 0.0
    shapes: list[Shape] = []
    for name in proto.input:
        shape = _static(values[name]) if name else ()
        if shape is None:
            return 0.0
        shapes.append(shape)
    outputs = [_static(values[name]) for name in node.outputs]
    if not outputs or any(shape is None for shape in outputs):
        return 0.0
    known = [shape for shape in outputs if shape is not None]
    rule = _RULES.get(proto.op_type)
    if rule is not None:
        return float(rule(proto, shapes, known[0]))
    return _PER_ELEMENT.get(proto.op_type, 1.0) * sum(map(math.prod, known))


def _static(value: Value) -> Shape | None:
    return value.numbers


def _attributes(proto: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
    return {a.name: a for a in proto.attribute}


def _conv(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    """2 x output elements x (input channels per group x kernel) + bias."""
    weight = inputs[1]
    bias = math.prod(output) if len(inputs) > 2 and inputs[2] else 0
    return 2.0 * math.prod(output) * math.prod(weight[1:]) + bias


def _qlinear_conv(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    bias = math.prod(output) if len(inputs) > 8 and inputs[8] else 0
    return 2.0 * math.prod(output) * math.prod(inputs[3][1:]) + bias


def _conv_integer(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    return 2.0 * math.prod(output) * math.prod(inputs[1][1:])


def _conv_transpose(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    """2 x input elements x (output channels per group x kernel): each input element is multiplied by all its taps."""
    bias = math.prod(output) if len(inputs) > 2 and inputs[2] else 0
    return 2.0 * math.prod(inputs[0]) * math.prod(inputs[1][1:]) + bias


def _matmul(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    """2 x output elements x the shared dimension."""
    return 2.0 * math.prod(output) * (inputs[0][-1] if inputs[0] else 1)


def _fused_matmul(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    transposed = "transA" in (attributes := _attributes(proto)) and attributes["transA"].i
    return 2.0 * math.prod(output) * inputs[0][-2 if transposed else -1]


def _gemm(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    """2 x M x N x K, and M x N for C."""
    transposed = "transA" in (attributes := _attributes(proto)) and attributes["transA"].i
    shared = inputs[0][0] if transposed else inputs[0][1]
    return 2.0 * math.prod(output) * shared + (math.prod(output) if len(inputs) > 2 and inputs[2] else 0)


def _einsum(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    """2 x the product of all index ranges; only of the elements if the equation has an ellipsis."""
    equation = _attributes(proto)["equation"].s.decode().replace(" ", "")
    terms = equation.split("->")[0].split(",")
    if "." in equation or len(terms) != len(inputs):
        return 2.0 * math.prod(output)
    extent: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=True):
        extent.update(zip(term, shape, strict=False))
    return 2.0 * math.prod(extent.values())


def _pool(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    """One operation for each output element and tap."""
    return float(math.prod(output) * math.prod(_attributes(proto)["kernel_shape"].ints))


def _over_input(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    """One operation for each input element."""
    return float(math.prod(inputs[0]))


def _variadic(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    return float(math.prod(output) * max(1, len(inputs) - 1))


def _recurrent(gates: int) -> Callable[[onnx.NodeProto, list[Shape], Shape], float]:
    def rule(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
        steps, batch, features = inputs[0]
        directions, _, hidden = inputs[2]
        return 2.0 * steps * batch * directions * gates * hidden * (features + hidden)

    return rule


def _attention(proto: onnx.NodeProto, inputs: list[Shape], output: Shape) -> float:
    """Two products of the queries with all keys, and the softmax between them."""
    query, key = inputs[0], inputs[1] if len(inputs) > 1 and len(inputs[1]) >= 2 else inputs[0]
    return 4.0 * math.prod(query) * key[-2]


_RULES: Mapping[str, Callable[[onnx.NodeProto, list[Shape], Shape], float]] = {
    "Conv": _conv,
    "FusedConv": _conv,
    "QLinearConv": _qlinear_conv,
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "FusedMatMul": _fused_matmul,
    "Gemm": _gemm,
    "FusedGemm": _gemm,
    "Einsum": _einsum,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "Sum": _variadic,
    "Mean": _variadic,
    "Max": _variadic,
    "Min": _variadic,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "Attention": _attention,
    "MultiHeadAttention": _attention,
    **dict.fromkeys(
        "GlobalAveragePool GlobalMaxPool GlobalLpPool ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1"
        " ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare ArgMax ArgMin CumSum TopK".split(),
        _over_input,
    ),
}
