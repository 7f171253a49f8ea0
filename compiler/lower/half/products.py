"""The operators whose products a CPU with `precision=bf16` computes from factors that are rounded to bfloat16.

Everything else stays float32: values between kernels, sums, and what kernels compute beside products.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.operators.record import STATE, Operator
from heterocc.compiler.operators.table import of_type
from heterocc.passes.graph import Node


def product_nodes(model: ImportedModel, nodes: Iterable[str]) -> frozenset[str]:
    """Those of `nodes` whose products are rounded: not convolutions of several taps, which have no code for pairs."""
    found = (model.graph.node_by_name[name] for name in nodes)
    return frozenset(n.name for n in found if is_rounded(of_type(n.op_type)) and not _has_taps(model, n))


def _has_taps(model: ImportedModel, node: Node) -> bool:
    weight = model.weights.get(node.inputs[1]) if of_type(node.op_type).window == "product" else None
    return weight is not None and prod(weight.shape[2:]) > 1


def is_rounded(operator: Operator) -> bool:
    """Whether factors of an operator are rounded. Those of recurrent layers are not: errors of states add up."""
    return bool(operator.factors) and operator.float32_results != STATE
