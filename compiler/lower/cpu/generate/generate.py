"""The generated form of a kernel, if there is one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from tvm import tirx

from heterocc.compiler.lower.cpu.generate.bfloat.bfloat_product import propose_paired_product
from heterocc.compiler.lower.cpu.generate.candidates import Done, Form, written_best
from heterocc.compiler.lower.cpu.generate.convolution.channel_tiles import propose_channels
from heterocc.compiler.lower.cpu.generate.convolution.depthwise import propose_planes
from heterocc.compiler.lower.cpu.generate.convolution.direct import propose_direct
from heterocc.compiler.lower.cpu.generate.convolution.filtering.winograd import propose_winograd
from heterocc.compiler.lower.cpu.generate.convolution.pooling import generate_pooling
from heterocc.compiler.lower.cpu.generate.integers.byte_product import propose_integer_product
from heterocc.compiler.lower.cpu.generate.integers.depthwise import propose_integer_depthwise
from heterocc.compiler.lower.cpu.generate.integers.limited_product import propose_limited_product
from heterocc.compiler.lower.cpu.generate.integers.matrix_product import propose_matrix_product
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.maps.maps import generate_map
from heterocc.compiler.lower.cpu.generate.packed_inside import packed_inside
from heterocc.compiler.lower.cpu.generate.products.product import propose_product
from heterocc.compiler.lower.cpu.generate.read import BYTES, FLOATS, OTHERS, Kernel, read_fold, read_kernel
from heterocc.compiler.lower.cpu.generate.rows.rows import generate_rows
from heterocc.compiler.lower.cpu.generate.rows.stages import read_rows
from heterocc.compiler.lower.cpu.sizes import attempt
from heterocc.compiler.lower.kernels.expressions import is_zero, parts_of

FORMS: tuple[Form, ...] = (
    propose_product,
    propose_channels,
    propose_winograd,
    propose_direct,
    propose_planes,
)
"""The forms of products and convolutions; the one with the least time is written."""

PAIRED: tuple[Form, ...] = (
    propose_paired_product,
    propose_planes,
)
"""Those that come before them if factors are rounded to bfloat16."""

INTEGERS: tuple[Form, ...] = (
    propose_matrix_product,
    propose_limited_product,
    propose_integer_product,
    propose_integer_depthwise,
)
"""Those of products of bytes."""


def generate(function: tirx.PrimFunc, weights: Collection[int], isa: Isa, forms: Sequence[Form] = FORMS) -> Done | None:
    """Write a kernel for an instruction set; None if no generator supports its kind.

    `weights` are the numbers of the arguments that are parameters. `forms` are those of float32 products and
    convolutions. Returns the kernel, with the same arguments, and the packings of the weights among them. A kernel with
    a loop that never runs, as that of a part of size 0, stays as it is: generators leave loops of one turn out, and
    would take it for one.
    """
    if any(is_zero(loop.extent) for loop in parts_of(function.body, tirx.For)):
        return None
    summed = _sum_of_products(function, weights, isa, forms)
    if summed is not None:
        return summed
    fold = attempt(lambda: read_fold(function))
    pooled = None if fold is None else attempt(partial(generate_pooling, fold, isa))
    if pooled is not None:
        return pooled
    rows = attempt(lambda: read_rows(function))
    return attempt(partial(generate_map, function, isa) if rows is None else partial(generate_rows, rows, isa))


def _sum_of_products(function: tirx.PrimFunc, weights: Collection[int], isa: Isa, forms: Sequence[Form]) -> Done | None:
    """The kernel as a sum of products; None if no form of these supports it: it may be one of rows."""
    paired = PAIRED if isa.bfloat else ()
    others = (propose_product, propose_direct)
    for types, kinds in ((FLOATS, (paired, forms)), (BYTES, (INTEGERS,)), (OTHERS, (others,))):
        kernel = attempt(partial(read_kernel, function, weights, types))
        if kernel is not None:
            written = (written_best(kernel, some, isa) for some in kinds)
            done = next((done for done in written if done is not None), None)
            return done or _packing_itself(kernel, kinds[-1], isa)
    return None


def _packing_itself(kernel: Kernel, forms: Sequence[Form], isa: Isa) -> Done | None:
    """The kernel in a form that reads its right factor as a weight, and packs it itself if the form needs that."""
    number = kernel.argument(kernel.right.source)
    if number is None or number in kernel.weights:
        return None
    packable = replace(kernel, weights=kernel.weights | {number})
    done = written_best(packable, [form for form in forms if form is not propose_winograd], isa)
    if done is None or not done[1]:
        return done
    code = packed_inside(done[0], kernel.function.params[number], *done[1])
    return None if code is None else (code, ())
