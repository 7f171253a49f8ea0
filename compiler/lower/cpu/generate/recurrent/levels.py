"""The state of a recurrent layer in 8 bits: levels of its range, as DynamicQuantizeLinear defines them."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.recurrent.layer import Layer
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import broadcast, put, vector
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.recurrent.arguments import array
from heterocc.compiler.lower.cpu.generate.requested.byte_range import LEVELS, Range
from heterocc.compiler.lower.cpu.generate.spans import folded

_WIDE = (4, 2, 1)
"""Vectors that are read together, if the state has whole ones: a comparison waits for the one before."""


class Levels:
    """The bytes of each row, [batch, padded], and the sum of each row's bytes less their zero point.

    One range, which contains zero, is that of all rows, as in ONNX Runtime on one thread: `scale` is the height of a
    level, `zero` the zero point, [1] each.
    """

    def __init__(self, layer: Layer, batch: int, isa: Isa) -> None:
        self.layer, self.batch = layer, batch
        self.bytes = emit.flat(array("uint8", batch, layer.padded))
        self.scale = array("float32", 1)
        self.zero = array("int32", 1)
        self.sum = array("float32", batch) if layer.shifted else None
        vectors = layer.padded // min(isa.lanes, layer.unit)
        self.lanes = min(isa.lanes, layer.unit) * next(n for n in _WIDE if vectors % n == 0)

    def write(self, state: tirx.Buffer, start: tirx.Expr) -> None:
        """Write the code that makes them from rows of the state, [batch, padded] from `start` on in a flat buffer."""
        layer, lanes = self.layer, self.lanes
        zero, most = tirx.const(0, "float32"), tirx.const(LEVELS, "float32")
        every = Range(lanes)
        with emit.loop(self.batch * (layer.padded // lanes)) as part:
            every.take(state, start + part * index(lanes), lanes)
        scale, middle = every.scale()
        build.buffer_store(self.scale, scale, [index(0)])
        build.buffer_store(self.zero, tirx.Cast("int32", middle), [index(0)])
        with emit.loop(self.batch) as row:
            begin = build.bind(start + row * index(layer.padded))
            total = emit.cleared(1, lanes) if self.sum is not None else None
            with emit.loop(layer.padded // lanes) as part:
                value = vector(state, begin + part * index(lanes), lanes)
                level = tirx.nearbyint(value / broadcast(scale, lanes)) + broadcast(middle, lanes)
                level = tirx.max(broadcast(zero, lanes), tirx.min(broadcast(most, lanes), level))
                if total is not None:
                    more = vector(total, index(0), lanes) + (level - broadcast(middle, lanes))
                    put(total, more, index(0), lanes)
                narrow = tirx.Cast(f"uint8x{lanes}", tirx.Cast(f"int32x{lanes}", level))
                put(self.bytes, narrow, row * index(layer.padded) + part * index(lanes), lanes)
            if total is not None and self.sum is not None:
                build.buffer_store(self.sum, folded(total, lanes, lambda a, b: a + b)[index(0)], [row])
