"""Which values of a model may be too large for float16 although those that they are computed from are not."""

from __future__ import annotations

from heterocc.passes.graph import Graph

SUMS = frozenset(
    "AveragePool BatchNormalization GlobalAveragePool GroupNormalization InstanceNormalization LayerNormalization "
    "LogSoftmax LpNormalization MeanVarianceNormalization RMSNormalization ReduceMean Softmax".split()
)
"""Operators that sum numbers, but whose results are no larger than these."""

_RISES = frozenset(
    "Cosh CumProd CumSum Exp GlobalLpPool LpPool Pow ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceProd "
    "ReduceSum ReduceSumSquare Sinh".split()
)
"""Operators whose results may exceed 65504 although their inputs do not."""

_KEEPS = frozenset(
    "Abs Add Clip Concat Expand Flatten Gather Identity Max Mean Min Mul Neg Pad ReduceMax ReduceMean ReduceMin Relu "
    "Reshape Slice Split Squeeze Sub Sum Tile Transpose Unsqueeze Where".split()
)
"""Operators whose results may be as large as their inputs."""


def plain_type(op_type: str) -> str:
    """An operator type without its domain."""
    return op_type.rpartition("::")[2]


def may_exceed(graph: Graph) -> frozenset[str]:
    """The values that may exceed 65504 although those that they are computed from need not.

    Sums, squares and powers, and what follows from them by arithmetic that does not bring them back into range.
    """
    found: set[str] = set()
    for node in graph.nodes:
        op_type = plain_type(node.op_type)
        square = op_type == "Mul" and len(set(node.inputs)) == 1
        if square or op_type in _RISES or (op_type in _KEEPS and not found.isdisjoint(node.inputs)):
            found.update(node.outputs)
    return frozenset(found)
