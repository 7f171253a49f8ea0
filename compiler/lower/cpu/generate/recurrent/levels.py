"""Numbers in 8 bits: levels of their range, as DynamicQuantizeLinear defines them, and those of a recurrent state."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.recurrent.layer import Layer
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import broadcast, put, vector
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.read import Combine
from heterocc.compiler.lower.cpu.generate.recurrent.arguments import array
from heterocc.compiler.lower.cpu.generate.spans import folded
from heterocc.compiler.lower.cpu.sizes import Size

_WIDE = (4, 2, 1)
"""Vectors that are read together, if the state has whole ones: a comparison waits for the one before."""

_LEVELS = 255.0
"""The largest of bytes."""

_ENDS: tuple[Combine, Combine] = (lambda end, value: tirx.min(value, end), lambda end, value: tirx.max(value, end))
"""Of a number and NaN, the second operand is the result: a NaN among the data is left out."""


class Range:
    """The least and the largest of zero and of numbers that are taken in vectors."""

    def __init__(self, lanes: int) -> None:
        self.lanes, self.ends = lanes, [emit.cleared(1, lanes) for _ in _ENDS]

    def take(self, data: tirx.Buffer, start: tirx.Expr, lanes: int) -> None:
        """Write the code that takes so many numbers of a flat buffer, no more than the range has lanes."""
        for end, combine in zip(self.ends, _ENDS, strict=True):
            value = combine(emit.vector(end, index(0), lanes), emit.vector(data, start, lanes))
            emit.put(end, value, index(0), lanes)

    def limits(self) -> tuple[tirx.Expr, tirx.Expr]:
        """The least and the largest number."""
        low, high = (folded(e, self.lanes, combine)[index(0)] for e, combine in zip(self.ends, _ENDS, strict=True))
        return build.bind(low), build.bind(high)

    def scale(self) -> tuple[tirx.Expr, tirx.Expr]:
        """The height of a level of bytes of the range, and the level of zero, as numbers.

        The definition is that of ONNX's DynamicQuantizeLinear; a range of zero has the scale 1, as in ONNX Runtime.
        """
        (low, high), zero, most = self.limits(), build.float32(0.0), build.float32(_LEVELS)
        span = build.bind(high - low)
        scale = build.bind(tirx.Select(span == zero, build.float32(1.0), span / most))
        return scale, build.bind(tirx.max(tirx.min(tirx.nearbyint(zero - low / scale), most), zero))


class Levels:
    """The bytes of each row, [batch, padded], and the sum of each row's bytes less their zero point.

    One range, which contains zero, is that of all rows, as in ONNX Runtime on one thread: `scale` is the height of a
    level, `zero` the zero point, [1] each.
    """

    def __init__(self, layer: Layer, batch: Size, isa: Isa) -> None:
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
        zero, most = tirx.const(0, "float32"), tirx.const(_LEVELS, "float32")
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
