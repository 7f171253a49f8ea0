"""Which kernels by element are joined to the product that reads them, to be computed panel by panel."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx

from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.products.product import is_narrow
from heterocc.compiler.lower.cpu.generate.products.product_form import find_product
from heterocc.compiler.lower.cpu.generate.read import read_kernel
from heterocc.compiler.lower.cpu.sizes import assuming, attempt, dims_of
from heterocc.compiler.lower.relax.kernels import KernelModule
from heterocc.compiler.lower.relax.merge import merge_pairs


def joined_products(module: KernelModule, isa: Isa) -> KernelModule:
    """The module with arithmetic by element joined to the products that alone read its results.

    A normalisation and activation before a 1×1 convolution is an example, which DenseNet has before each.
    """
    return merge_pairs(module, _is_arithmetic, lambda function: _computes(function, isa))


def _is_arithmetic(function: tirx.PrimFunc) -> bool:
    """Whether a kernel calls no function, chooses between no values and sums nothing up."""
    others: list[object] = []
    rules = [
        (ir.Call, others.append),
        (s_tir.SBlock, lambda block: others.append(block) if block.init is not None else None),
    ]
    tvm_ffi.structural_walk(function.body, rules, order="post")
    return not others


def _computes(function: tirx.PrimFunc, isa: Isa) -> bool:
    """Whether a kernel is a product whose vectors are computed, and is written as one."""

    def computes() -> bool:
        kernel = read_kernel(function, ())
        found = None if kernel is None else find_product(kernel)
        return found is not None and found.vectors.value is not None and not is_narrow(found, isa)

    with assuming(dims_of(function)):
        return bool(attempt(computes))
