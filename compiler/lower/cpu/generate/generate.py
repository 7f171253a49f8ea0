"""The generated form of a kernel, if there is one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.cpu.generate.bfloat.direct import generate_paired_direct
from heterocc.compiler.lower.cpu.generate.bfloat.product import generate_paired_product
from heterocc.compiler.lower.cpu.generate.convolution.along_channels import generate_along_channels
from heterocc.compiler.lower.cpu.generate.convolution.blocks_pay import generate_input_blocks
from heterocc.compiler.lower.cpu.generate.convolution.depthwise import generate_depthwise
from heterocc.compiler.lower.cpu.generate.convolution.direct import generate_direct
from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import FilteredPanels
from heterocc.compiler.lower.cpu.generate.convolution.filtering.winograd import generate_winograd
from heterocc.compiler.lower.cpu.generate.convolution.form import is_strided_of_any_size
from heterocc.compiler.lower.cpu.generate.convolution.planes import generate_planes
from heterocc.compiler.lower.cpu.generate.convolution.pointwise import generate_pointwise
from heterocc.compiler.lower.cpu.generate.convolution.pooling import generate_pooling
from heterocc.compiler.lower.cpu.generate.convolution.pooling_last import generate_pooling_last
from heterocc.compiler.lower.cpu.generate.convolution.sized_planes import generate_sized_planes
from heterocc.compiler.lower.cpu.generate.convolution.sized_pooling import generate_sized_pooling
from heterocc.compiler.lower.cpu.generate.integers.depthwise import generate_integer_depthwise
from heterocc.compiler.lower.cpu.generate.integers.limited import LimitedPanels
from heterocc.compiler.lower.cpu.generate.integers.limited_product import generate_limited_product
from heterocc.compiler.lower.cpu.generate.integers.matrix_product import generate_matrix_product
from heterocc.compiler.lower.cpu.generate.integers.panels import IntegerPanels
from heterocc.compiler.lower.cpu.generate.integers.product import generate_integer_product
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.maps.maps import generate_map
from heterocc.compiler.lower.cpu.generate.pair_panels import PairPanels
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.products.gates import generate_gated
from heterocc.compiler.lower.cpu.generate.products.product import generate_product
from heterocc.compiler.lower.cpu.generate.read import read_fold, read_integer_kernel, read_kernel
from heterocc.compiler.lower.cpu.generate.reductions import generate_reduction
from heterocc.compiler.lower.cpu.generate.rows.rows import generate_rows
from heterocc.compiler.lower.cpu.generate.rows.stages import read_rows
from heterocc.compiler.lower.cpu.sizes import attempt

KINDS = (
    generate_input_blocks,
    generate_pointwise,
    generate_product,
    generate_planes,
    generate_sized_planes,
    generate_depthwise,
    generate_winograd,
    generate_along_channels,
    generate_direct,
)
"""Functions (kernel, instruction set) -> (code, packings) or None for a kernel of another kind; tried in order."""

PAIRED = (generate_paired_product, generate_planes, generate_sized_planes, generate_depthwise, generate_paired_direct)
"""Those that precede them if factors are rounded to bfloat16."""

INTEGERS = (generate_matrix_product, generate_limited_product, generate_integer_product, generate_integer_depthwise)
"""Those for products of integers."""

FOLDS = (generate_sized_pooling, generate_pooling, generate_pooling_last, generate_reduction)
"""Those for values that are combined."""

Packings = tuple[Panels | FilteredPanels | IntegerPanels | LimitedPanels | PairPanels, ...]
_Done = tuple[tirx.PrimFunc, Packings]


def generate(function: tirx.PrimFunc, weights: Collection[int], isa: Isa) -> _Done | None:
    """Write a kernel for an instruction set; None if no generator supports its kind.

    `weights` are the numbers of the arguments that are parameters. Returns the kernel, with the same arguments, and
    the packings of the weights among them. A kernel with a loop that never runs, as that of a part of size 0, stays
    as it is: generators leave loops of one turn out, and would take it for one.
    """
    if _has_empty_loop(function):
        return None

    def of(*kinds: Callable[[Any, Isa], _Done | None], read: Any) -> _Done | None:
        found = (attempt(partial(kind, read, isa)) for kind in kinds)
        return next((done for done in found if done is not None), None)

    kernel = attempt(lambda: read_kernel(function, weights))
    if kernel is not None:
        # Of a map of any size with strides, other kinds copy many rows at a time.
        strided = attempt(partial(is_strided_of_any_size, kernel))
        kinds = [kind for kind in KINDS if not (strided and kind is generate_product)]
        return of(*(PAIRED if isa.bfloat else ()), *kinds, read=kernel)
    integers = attempt(lambda: read_integer_kernel(function, weights))
    if integers is not None:
        return of(*INTEGERS, read=integers)
    gated = attempt(lambda: generate_gated(function, weights, isa))
    if gated is not None:
        return gated
    fold = attempt(lambda: read_fold(function))
    if fold is not None and (done := of(*FOLDS, read=fold)) is not None:
        return done
    rows = attempt(lambda: read_rows(function))
    return attempt(lambda: generate_map(function, isa)) if rows is None else of(generate_rows, read=rows)


def _has_empty_loop(function: tirx.PrimFunc) -> bool:
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(function.body, [(tirx.For, found.append)], order="pre")
    return any(isinstance(loop.extent, tirx.IntImm) and int(loop.extent) == 0 for loop in found)
