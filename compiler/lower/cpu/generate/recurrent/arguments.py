"""The arguments of the kernel of a recurrent layer, and its arrays."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.recurrent.layer import Layer
from heterocc.compiler.lower.cpu.generate.places import index, shape_of
from heterocc.compiler.lower.cpu.sizes import Size
from heterocc.compiler.operators.layers.recurrent import STATES


class LayerArguments:
    """The arguments of the kernel being written: those of `Layer.arguments`, None for absent ones."""

    def __init__(self, layer: Layer, given: Sequence[tirx.Buffer]) -> None:
        made = dict(zip(layer.arguments(), given, strict=True))
        shape = shape_of(made["outputs"])
        assert shape is not None
        self.steps, self.batch, _ = shape
        self.projected, self.weights, self.outputs = made["projected"], made["recurrence"], made["outputs"]
        self.begin = [made[f"begin{n}"] for n in range(STATES[layer.kind])] if layer.begins else []
        self.last = [made[f"last{n}"] for n in range(STATES[layer.kind])]
        self.factors, self.totals, self.offsets = (made.get(name) for name in ("factors", "totals", "offsets"))
        self.bias, self.peephole, self.lengths = (made.get(name) for name in ("bias", "peephole", "lengths"))


def array(dtype: str, *shape: Size) -> tirx.Buffer:
    """Memory of the kernel, for all its threads."""
    return build.alloc_buffer(tuple(map(index, shape)), dtype, scope="global")
