"""Direct convolutions whose factors are rounded to bfloat16: as those of float32, with input channels in pairs.

Two channels at a time are copied, as float32, and then combined to a plane of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.direct import DirectWriter
from heterocc.compiler.lower.cpu.generate.convolution.form import find_convolution
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.pairs import paired
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import PAIRS
from heterocc.compiler.lower.cpu.sizes import is_number

MOST_PHASES = 9
"""The limit on the planes of a channel, by strides of rows and columns: the code that copies has a part for each."""


def propose_paired_direct(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a direct convolution of fixed sizes, small strides and two input channels or more in each group."""
    if not all(map(is_number, kernel.extents)):
        return
    conv = find_convolution(kernel)
    if conv is None or conv.inputs < 2 or not can_store(kernel):
        return
    if len(conv.rows.phases) * len(conv.columns.phases) <= MOST_PHASES:
        writer = partial(_Writer, kernel, conv)
        yield Candidate("direct", writer(isa).cycles, writer, "of pairs", "int32")


class _Writer(DirectWriter):
    """A generator of a convolution of pairs of channels."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.packing = self.packing.in_pairs(self.conv.taps)
        self.kind = PAIRS

    @property
    def inputs(self) -> int:
        """The number of pairs of channels."""
        return -(-self.conv.inputs // 2)

    def scratch(self, planes: int, overrun: int) -> tirx.Buffer:
        """Memory for pairs of channels of `planes` numbers each, and what vectors read beyond the end."""
        return emit.scratch(self.inputs * planes + overrun, "int32")

    def copy(self, arguments: Arguments, copied: tirx.Buffer, group: tirx.Expr, top: tirx.Expr) -> None:
        """Copy what the outputs from row `top` read, padded: all pairs of channels of a group of an image."""
        conv, lanes = self.conv, self.isa.lanes
        flat = arguments.flat(conv.data)
        length = len(conv.rows.phases) * len(conv.columns.phases) * self.plane
        both = emit.scratch(2 * length)
        with emit.loop(self.inputs) as pair:
            first = group * index(conv.inputs) + pair * index(2)
            self.copy_channel(flat, first, (both, index(0)), top)

            def second(first: tirx.Expr = first) -> None:
                self.copy_channel(flat, first + index(1), (both, index(1)), top)

            def none() -> None:
                with emit.loop(length // lanes) as number:
                    emit.put(both, emit.zeros(lanes), index(length) + number * index(lanes), lanes)

            if conv.inputs % 2:
                emit.either(pair * index(2) + index(1) < index(conv.inputs), second, none)
            else:
                second()
            with emit.loop(length // lanes) as number:
                start = number * index(lanes)
                halves = (emit.vector(both, start + index(half * length), lanes) for half in range(2))
                emit.put(copied, paired(*halves), pair * index(length) + start, lanes)
