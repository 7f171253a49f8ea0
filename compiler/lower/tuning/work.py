"""An estimate of a kernel's work."""

from __future__ import annotations

from math import prod

import tvm_ffi
from tvm import s_tir, tirx


def work_of(function: tirx.PrimFunc) -> int:
    """The number of iterations of the kernel's loop nests: multiply-adds of a product, elements of other blocks.

    Extents that are known only at run time count as one.
    """
    found = 0

    def visit(block: s_tir.SBlock) -> None:
        nonlocal found
        if block.name_hint != "root":
            extents = (v.dom.extent for v in block.iter_vars)
            found += prod(int(extent) for extent in extents if isinstance(extent, tirx.IntImm))

    tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, visit)], order="post")
    return found
