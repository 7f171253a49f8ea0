"""Whether code for sizes that are known only at run time is expected to be as fast as ONNX Runtime."""

from __future__ import annotations

from heterocc.compiler.importer.model import ImportedModel
from heterocc.passes.graph import Node

MOST_OTHERS = 0.05
"""Share of the nodes with dynamic dimensions that may have no generated code. Each run of such nodes costs a change of
device, and with more of them ONNX Runtime alone is expected to be faster."""

_GENERATED = frozenset(
    """
    Abs Add And AveragePool BatchNormalization Cast Ceil Clip Concat Constant ConstantOfShape Conv Cos DepthToSpace Div
    Dropout Elu Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm GlobalAveragePool
    GlobalMaxPool Greater GreaterOrEqual HardSigmoid HardSwish Identity LayerNormalization LeakyRelu Less LessOrEqual
    Log LogSoftmax MatMul Max MaxPool Mean Min Mish Mul Neg Not Or PRelu Pad Pow Range Reciprocal ReduceL2 ReduceMax
    ReduceMean ReduceMin ReduceSum ReduceSumSquare Relu Reshape Round Shape Sigmoid Sign Sin Slice Softmax Softplus
    SpaceToDepth Split Sqrt Squeeze Sub Sum Tanh Tile Transpose Unsqueeze Where Xor
    """.split()
)
"""Operators whose code is generated for all sizes, or which move little data."""
_WINDOWS = frozenset({"AveragePool", "Conv", "MaxPool"})
"""Operators with generated code for a batch of any size, which for images of any size may fall back to loops."""


def is_expected_fast(model: ImportedModel) -> bool:
    """Whether nearly all nodes with dynamic dimensions have generated code on the CPU."""
    dynamic = [node for node in model.graph.nodes if _is_dynamic(model, node)]
    others = sum(not has_generated_code(model, node) for node in dynamic)
    return bool(dynamic) and others <= MOST_OTHERS * len(dynamic)


def has_generated_code(model: ImportedModel, node: Node) -> bool:
    """Whether code of a node is generated for all sizes: not for one whose shapes depend on data."""
    values = [model.graph.values[name] for name in (*node.inputs, *node.outputs)]
    known = all(v.shape is not None and None not in (model.known_dims(v) or (None,) * len(v.shape)) for v in values)
    return (
        known and node.op_type in _GENERATED and not (node.op_type in _WINDOWS and _has_image_of_any_size(model, node))
    )


def _has_image_of_any_size(model: ImportedModel, node: Node) -> bool:
    shape = model.graph.values[node.inputs[0]].shape or ()
    return not all(isinstance(dim, int) for dim in shape[1:])


def _is_dynamic(model: ImportedModel, node: Node) -> bool:
    values = model.graph.values
    return any(not values[name].is_static for name in (*node.inputs, *node.outputs))
