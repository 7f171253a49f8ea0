"""Which values of a model may be too large for float16 although those that they are computed from are not."""

from __future__ import annotations

from heterocc.compiler.operators.table import of_type
from heterocc.passes.graph import Graph


def may_exceed(graph: Graph) -> frozenset[str]:
    """The values that may exceed 65504 although those that they are computed from need not.

    Sums, squares and powers, and what follows from them by arithmetic that does not bring them back into range.
    """
    found: set[str] = set()
    for node in graph.nodes:
        operator = of_type(node.op_type)
        square = operator.symbol == "*" and len(set(node.inputs)) == 1
        kept = operator.magnitude == "kept" or operator.moves or operator.between
        if square or operator.magnitude == "risen" or (kept and not found.isdisjoint(node.inputs)):
            found.update(node.outputs)
    return frozenset(found)
