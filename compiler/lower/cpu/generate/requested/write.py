"""The kernels that converters request, by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.recurrent.layer import RECURRENT, Layer
from heterocc.compiler.lower.cpu.bound_sizes import with_bound_sizes
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import index, shape_of
from heterocc.compiler.lower.cpu.generate.recurrent.kernel import write_layer
from heterocc.compiler.lower.cpu.generate.requested.blocked_product import write_blocked_product
from heterocc.compiler.lower.cpu.generate.requested.byte_range import write_byte_range
from heterocc.compiler.lower.cpu.generate.requested.expert_product import write_expert_product
from heterocc.compiler.lower.cpu.generate.requested.linear_attention import write_linear_attention
from heterocc.compiler.lower.cpu.generate.requested.request import Request
from heterocc.compiler.lower.cpu.generate.requested.top_k import write_index_of, write_top_k
from heterocc.compiler.lower.cpu.sizes import SizeUnknownError, assuming, dims_of
from heterocc.compiler.lower.kernels.expressions import dtype_of
from heterocc.compiler.lower.kernels.quotients import truncating
from heterocc.compiler.lower.written import REQUEST, WRITTEN

Writer = Callable[[Request, Sequence[tirx.Buffer]], None]

WRITERS: Mapping[str, Writer] = {
    "blocked_product": write_blocked_product,
    "byte_range": write_byte_range,
    "expert_product": write_expert_product,
    "index_of": write_index_of,
    "linear_attention": write_linear_attention,
    "top_k": write_top_k,
}
"""Functions that write the body of a kernel on flat buffers of its arguments."""


def write_requested(function: tirx.PrimFunc, isa: Isa) -> tirx.PrimFunc:
    """The kernel that `function`, which has no body, requests.

    Raises SizeUnknownError if its code would assume something about sizes that are known only at run time.
    """
    with assuming(dims_of(function)) as assumptions:
        made = _written(function, isa)
    if assumptions.guards:
        raise SizeUnknownError(f"the kernel assumes {assumptions.guards[0]}")
    return with_bound_sizes(truncating(made)) if assumptions else made


def _written(function: tirx.PrimFunc, isa: Isa) -> tirx.PrimFunc:
    options = {str(name): value for name, value in function.attrs[REQUEST].items()}
    shapes = [shape_of(buffer) or () for buffer in function.params]
    request = Request(options, shapes, [dtype_of(buffer) for buffer in function.params], isa)
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("kernel")
        build.func_attr({"tirx.noalias": True, WRITTEN: True})
        given = [
            build.arg(buffer.name, build.Buffer(tuple(map(index, shape)), dtype))
            for buffer, shape, dtype in zip(function.params, shapes, request.dtypes, strict=True)
        ]
        if request.text("kind") == RECURRENT:
            write_layer(Layer.parsed(request.text("layer")), given, isa)
        else:
            WRITERS[request.text("kind")](request, list(map(emit.flat, given)))
    return builder.get().with_attr("global_symbol", function.attrs["global_symbol"])
