"""Rows of inputs of windows in vectors whose masks leave out what is outside the map, or from a padded copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.convolution.padded import CopiedRow, copy_row, every
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import held_mask, kept_by, masked_vector
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.sizes import Size, as_number, is_number

Masks = dict[int, tirx.Buffer]
"""The lanes inside the map, by the distance of a vector's inputs from its first output."""


@dataclass
class MaskedRows:
    """Rows of planes in `flat`, whose windows are `rows` and `columns`; `start` is what the padding has.

    A plane is read from `copied`, if it is given.
    """

    flat: tirx.Buffer
    rows: Window
    columns: Window
    isa: Isa
    lanes: int
    start: float
    copied: tirx.Buffer | None = None

    @property
    def _part(self) -> Size:
        """The length of a phase of a copied row, as far as vectors read it."""
        whole = -(-self.columns.places // self.lanes) * self.lanes + self.columns.reach // self.columns.stride
        return (whole // self.isa.lanes + 1) * self.isa.lanes

    @property
    def _pitch(self) -> Size:
        """The length of a copied row."""
        return len(self.columns.phases) * self._part

    @property
    def _lines(self) -> Size:
        return (self.rows.places - 1) * self.rows.stride + self.rows.reach + 1

    def allocate(self) -> None:
        """Take memory for a padded plane."""
        self.copied = emit.scratch(self._lines * self._pitch)

    def copy(self, plane: tirx.Expr) -> None:
        """Copy a plane with its padding, if rows are not read where they are."""
        rows, columns = self.rows, CopiedRow(self.columns, self._part, self._part, self.start)
        if self.copied is None:
            return
        with emit.loop(self._lines) as line:
            row = emit.bound(line - index(rows.before))
            source = emit.bound(plane + row * index(self.columns.size))
            to = emit.bound(line * index(self._pitch))
            copy_row(self.flat, source, self.copied, to, columns, row, rows.size, self.isa)

    def _parts(self, tap: int) -> list[int]:
        """The columns, from a vector's first output on, of the vectors that are read for a tap."""
        columns = self.columns
        shift = tap * columns.dilation - as_number(columns.before)
        if self.lanes == 1:
            return [shift]
        return [shift - shift % columns.stride + number * self.lanes for number in range(columns.stride)]

    def begin(self, start: tirx.Expr) -> tirx.Expr:
        """The first column that a vector of outputs reads."""
        columns = self.columns
        return start * index(columns.stride) + index(-columns.before - -columns.before % columns.stride)

    def end(self, start: tirx.Expr) -> tirx.Expr:
        """The column after the last one that a vector of outputs reads."""
        columns = self.columns
        farthest = columns.reach - columns.before
        more = farthest - farthest % columns.stride + self.lanes * columns.stride
        return start * index(columns.stride) + index(more)

    def masks(self, start: tirx.Expr) -> Masks:
        """The lanes of what a vector of outputs reads that are in the map, the same in all rows; none where all are."""
        columns = self.columns
        shifts = dict.fromkeys(shift for tap in range(columns.taps) for shift in self._parts(tap))
        begin = start * index(columns.stride)
        firsts = {shift: begin + index(shift) for shift in shifts}
        return {
            shift: held_mask(first, self.lanes, columns.size)
            for shift, first in firsts.items()
            if not (
                isinstance(first, tirx.IntImm)
                and is_number(columns.size)
                and 0 <= int(first) <= columns.size - self.lanes
            )
        }

    def line(
        self,
        plane: tirx.Expr,
        number: tirx.Expr,
        start: tirx.Expr,
        masks: Masks | None,
    ) -> Callable[[int], tirx.Expr]:
        """What a vector of outputs reads of a row of a plane at a tap: it is loaded when asked for.

        A load without a mask must be within the map.
        """
        lanes, columns, flat, copied = self.lanes, self.columns, self.flat, self.copied
        if copied is not None:
            line = emit.bound((number + index(self.rows.before)) * index(self._pitch) + start)

            def copied_at(tap: int) -> tirx.Expr:
                far, remainder = divmod(tap * columns.dilation, columns.stride)
                place = columns.phases.index(remainder) * self._part + far
                return build.bind(emit.vector(copied, line + index(place), lanes))

            return copied_at
        begin = emit.bound(plane + number * index(columns.size) + start * index(columns.stride))
        known: dict[int, tirx.Expr] = {}

        def loaded(shift: int) -> tirx.Expr:
            if shift not in known:
                place = begin + index(shift)
                if masks is None or shift not in masks:
                    value = emit.vector(flat, place, lanes)
                else:
                    value = masked_vector(flat, place, lanes, kept_by(masks[shift], lanes), self.start)
                known[shift] = build.bind(value)
            return known[shift]

        def at(tap: int) -> tirx.Expr:
            parts = [loaded(shift) for shift in self._parts(tap)]
            if len(parts) == 1:
                return parts[0]
            phase = (tap * columns.dilation - as_number(columns.before)) % columns.stride
            return build.bind(every(parts, columns.stride, phase, lanes))

        return at
