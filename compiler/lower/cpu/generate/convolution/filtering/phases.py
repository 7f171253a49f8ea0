"""Images of every so many rows and columns, by which a dilated convolution is several without dilation.

Its outputs at rows and columns that have one remainder by the dilations read inputs that have one remainder, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.spans import in_vectors


@dataclass(frozen=True, slots=True)
class Phases:
    """The images of a map: `down` times `across`, counted row by row. Rows count from the first one of a block.

    Rows of an image are `pitch` apart in the map: a block may have those of one remainder only, and `down` is 1 then.
    """

    down: int
    across: int
    pitch: int

    @property
    def apart(self) -> bool:
        """Whether a block has rows of one remainder."""
        return self.down != self.pitch

    @property
    def count(self) -> int:
        """The number of images."""
        return self.down * self.across

    def remainders(self, phase: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
        """The first row and column of an image."""
        return tirx.floordiv(phase, index(self.across)), tirx.floormod(phase, index(self.across))

    def take(
        self,
        source: tuple[tirx.Buffer, tirx.Expr, tirx.Expr | None],
        windows: tuple[Window, Window],
        place: tuple[tirx.Expr, tirx.Expr],
        copied: tirx.Buffer,
        sizes: tuple[int, int, int],
        lanes: int,
    ) -> None:
        """Copy the inputs of an image with zero padding, its columns apart by the remainder of their number.

        `source` is the memory, the start of the plane in it, and whether the plane is not in the padding; `place` the
        number of the image, and the first row of outputs. `sizes` are the rows, the remainders that are told apart, and
        the columns of each.
        """
        flat, start, exists = source
        rows, columns = windows
        phase, first = place
        lines, apart, length = sizes
        top, left = self.remainders(phase)
        in_vectors(lines * apart * length, lanes, lambda n, width: emit.put(copied, emit.zeros(width), n, width))
        pitch = apart * self.across
        for remainder in range(apart):
            begin = emit.bound(left + index(remainder * self.across - columns.before))
            low = emit.bound(tirx.max(index(0), -tirx.floordiv(begin, index(pitch))))
            inside = tirx.floordiv(index(columns.size - 1) - begin, index(pitch)) + index(1)
            high = emit.bound(tirx.min(index(length), inside))
            with emit.loop(lines) as line:
                row = emit.bound(first + top + line * index(self.pitch) - index(rows.before))
                on_map = tirx.all(row >= index(0), row < index(rows.size))
                with build.If(on_map if exists is None else tirx.all(on_map, exists)), build.Then():
                    there = emit.bound(start + row * index(columns.size) + begin)
                    to = (line * index(apart) + index(remainder)) * index(length)
                    with build.serial(low, high) as column:
                        build.buffer_store(copied, flat[there + column * index(pitch)], [to + column])

    def put(self, images: tirx.Buffer, size: tuple[int, int], whole: tirx.Buffer, rows: int, columns: int) -> None:
        """Put images of `size`, one behind the other, together to `rows` of `columns`; what is beyond is dropped."""
        height, width = size
        with emit.loop(self.count) as phase:
            top, left = map(emit.bound, self.remainders(phase))
            last = emit.bound(tirx.floordiv(index(rows - 1) - top, index(self.down)) + index(1))
            end = emit.bound(tirx.floordiv(index(columns - 1) - left, index(self.across)) + index(1))
            with build.serial(index(0), last) as row:
                start = emit.bound((phase * index(height) + row) * index(width))
                to = emit.bound((row * index(self.down) + top) * index(columns) + left)
                with build.serial(index(0), end) as column:
                    build.buffer_store(whole, images[start + column], [to + column * index(self.across)])
