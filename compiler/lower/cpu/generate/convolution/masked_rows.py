"""Copies of rows of any length with zero padding, in masked vectors: what masks leave out is the padding."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.convolution.padded import every, takes_vectors
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.sizes import is_number


def takes_masked_rows(window: Window, isa: Isa) -> bool:
    """Whether `masked_row` copies the rows of a window: of a length that is known only at run time."""
    return isa.has_masks and not is_number(window.size) and takes_vectors(window.stride, isa.lanes)


def masked_row(
    flat: tirx.Buffer,
    source: tirx.Expr,
    copied: tirx.Buffer,
    to: tirx.Expr,
    columns: tuple[Window, int, int],
    exists: tirx.Expr | None,
    lanes: int,
) -> None:
    """Copy the row that begins at `source` to `to`, its phases apart; zeros where the row does not exist.

    `columns` are the window, the length of a copied row, and the distance between the copies of its phases. The last
    vector of each phase writes up to `lanes` - 1 numbers beyond the copied row. What is beyond may be the next phase,
    which is written again: the last vectors are written first.
    """
    window, pitch, plane = columns
    vectors = -(-pitch // lanes)
    with emit.loop(vectors) as number:
        place = (index(vectors - 1) - number) * index(lanes)
        first = emit.bound(place * index(window.stride) - index(window.before))

        def part(vector: int, first: tirx.Expr = first) -> tirx.Expr:
            column = first + index(vector * lanes)
            kept = mask(column, lanes, window.size)
            if exists is not None:
                kept = tirx.And(kept, build.broadcast(exists, lanes))
            return build.bind(masked_vector(flat, source + column, lanes, kept))

        parts = [part(vector) for vector in range(window.stride)]
        for position, phase in enumerate(window.phases):
            emit.put(copied, every(parts, window.stride, phase, lanes), to + index(position * plane) + place, lanes)
