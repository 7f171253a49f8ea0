"""The operators whose products a CPU with `precision=bf16` computes from factors that are rounded to bfloat16.

Everything else stays float32: values between kernels, sums, and what kernels compute beside products.
"""

from __future__ import annotations

from collections.abc import Iterable

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.magnitudes import plain_type

PRODUCTS = frozenset(
    "Attention Conv ConvTranspose Einsum FusedConv FusedGemm FusedMatMul Gemm GroupQueryAttention MatMul "
    "MultiHeadAttention TransposeMatMul".split()
)
"""Operators whose product of float32 is computed in this way. Recurrent layers are not: errors of states add up."""


def product_nodes(model: ImportedModel, nodes: Iterable[str]) -> frozenset[str]:
    """Those of `nodes` whose products are rounded."""
    return frozenset(n for n in nodes if plain_type(model.graph.node_by_name[n].op_type) in PRODUCTS)
