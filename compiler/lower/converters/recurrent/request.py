"""The request for the kernel of a recurrent layer, which the CPU back end writes."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.recurrent.layer import RECURRENT, Layer
from heterocc.compiler.lower.converters.requested import OPAQUE
from heterocc.compiler.lower.written import REQUEST, WRITTEN


def recurrent_request(layer: Layer) -> tirx.PrimFunc:
    """A kernel without a body, with the arguments of the layer."""
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name(layer.kind.lower())
        request = {"kind": RECURRENT, "layer": layer.text()}
        build.func_attr({"tirx.noalias": True, WRITTEN: True, "op_pattern": OPAQUE, REQUEST: request})
        known = {
            name: tirx.Var(name, "int64") if size is None else tirx.IntImm("int64", size)
            for name, size in (("steps", layer.steps), ("batch", layer.batch))
        }
        for name, (shape, dtype) in layer.arguments().items():
            dims = [known[d] if isinstance(d, str) else tirx.IntImm("int64", d) for d in shape]
            build.arg(name, build.Buffer(tuple(dims), dtype))
        build.evaluate(tirx.const(0))
    return builder.get().without_attr("global_symbol")
