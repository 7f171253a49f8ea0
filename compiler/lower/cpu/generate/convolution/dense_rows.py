"""Copies of rows with padding whose columns stay in order, for vectors along channels.

Such vectors are multiplied by one number of a pixel at a time, read at any stride, so that columns need not be
separated by their remainders. Rows still are: those between the taps of a large stride are not copied.
"""

from __future__ import annotations

from dataclasses import replace

from heterocc.compiler.lower.cpu.generate.convolution.copied_rows import CopiedRows
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.sizes import typical

VECTOR_CYCLES = 1.5
"""The time in cycles of a vector of a row that is loaded by a mask and stored."""

ROW_CYCLES = 12.0
"""The time in cycles that each row adds to that of its vectors if these are loaded by masks."""


class DenseRows(CopiedRows):
    """Copies of the rows that chunks of output rows read, of as many as is best."""

    @property
    def length(self) -> int:
        """The numbers of a copy; the last vector of a row may exceed it."""
        return self.conv.inputs * len(self.conv.rows.phases) * self.plane + self.copying.lanes

    @property
    def _reads_beyond(self) -> bool:
        return False  # pixels are read one by one

    @property
    def again(self) -> float:
        """Modelled time of reading the weights again for every chunk but the first."""
        return self._again_cycles(self.chunks)

    def _copied_columns(self, columns: Window) -> Window:
        return replace(columns, stride=1, places=(columns.places - 1) * columns.stride + 1)

    def _vectors(self, rows: int) -> int:
        return -(-rows * self.conv.columns.places // self.isa.lanes)

    def _computed(self, rows: int) -> float:
        return rows * self.conv.columns.places / self.copying.lanes

    def _copy_cycles(self, rows: int) -> float:
        if not self.isa.masks:
            return super()._copy_cycles(rows)
        vectors = -(-typical(self.pitch) // self.copying.lanes)
        return self._copied_lines(rows) * (VECTOR_CYCLES * vectors + ROW_CYCLES)
