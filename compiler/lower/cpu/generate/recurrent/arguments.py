"""The arguments of the kernel of a recurrent layer, and its arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.recurrent.layer import Layer
from heterocc.compiler.operators.layers.recurrent import STATES


class Arguments:
    """The arguments, declared in the kernel being written: those of `Layer.arguments`, None for absent ones."""

    def __init__(self, layer: Layer) -> None:
        self.steps = tirx.Var("steps", "int64") if layer.steps is None else number(layer.steps)
        self.batch = tirx.Var("batch", "int64") if layer.batch is None else number(layer.batch)
        known = {"steps": self.steps, "batch": self.batch}
        made = {
            name: build.arg(name, build.Buffer(sizes([known[d] if isinstance(d, str) else d for d in shape]), dtype))
            for name, (shape, dtype) in layer.arguments().items()
        }
        self.projected, self.weights, self.outputs = made["projected"], made["recurrence"], made["outputs"]
        self.begin = [made[f"begin{n}"] for n in range(STATES[layer.kind])] if layer.begins else []
        self.last = [made[f"last{n}"] for n in range(STATES[layer.kind])]
        self.factors, self.totals, self.offsets = (made.get(name) for name in ("factors", "totals", "offsets"))
        self.bias, self.peephole, self.lengths = (made.get(name) for name in ("bias", "peephole", "lengths"))


def array(dtype: str, *shape: tirx.Expr | int) -> tirx.Buffer:
    """Memory of the kernel, for all its threads."""
    return build.alloc_buffer(sizes(shape), dtype, scope="global")


def flat(buffer: tirx.Buffer) -> tirx.Buffer:
    """A buffer as one of a single dimension."""
    size = math.prod(buffer.shape, start=number(1))
    return build.decl_buffer((size,), str(buffer.dtype), data=tirx.buffer_data(buffer))


def sizes(shape: Sequence[tirx.Expr | int]) -> tuple[tirx.Expr, ...]:
    """Dimensions as indices."""
    return tuple(number(d) if isinstance(d, int) else d for d in shape)


def number(value: int) -> tirx.Expr:
    """An index."""
    return tirx.const(value, "int64")
