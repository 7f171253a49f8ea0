"""The operators whose products a CPU with `precision=bf16` computes from factors that are rounded to bfloat16.

Everything else stays float32: values between kernels, sums, and what kernels compute beside products.
"""

from __future__ import annotations

from collections.abc import Iterable

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.operators.record import STATE, Operator
from heterocc.compiler.operators.table import of_type


def product_nodes(model: ImportedModel, nodes: Iterable[str]) -> frozenset[str]:
    """Those of `nodes` whose products are rounded."""
    return frozenset(n for n in nodes if is_rounded(of_type(model.graph.node_by_name[n].op_type)))


def is_rounded(operator: Operator) -> bool:
    """Whether factors of an operator are rounded. Those of recurrent layers are not: errors of states add up."""
    return bool(operator.factors) and operator.float32_results != STATE
