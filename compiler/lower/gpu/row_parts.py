"""What work groups that share rows leave to later kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.accumulate import Exprs
from heterocc.compiler.lower.gpu.rows import Reduction, Rows
from heterocc.compiler.lower.gpu.teams import part_dtypes


class Parts:
    """The results of `count` parts of each row: a buffer [result, part, row] for each dtype."""

    def __init__(self, rows: Rows, count: int) -> None:
        self._places: list[tuple[Reduction, list[tuple[str, int]]]] = []
        sizes = dict.fromkeys(part_dtypes(rows), 0)
        for reduction in rows.reductions:
            places = []
            for dtype in reduction.accumulator.dtypes:
                places.append((dtype, sizes[dtype]))
                sizes[dtype] += 1
            self._places.append((reduction, places))
        self.buffers = {
            dtype: tirx.decl_buffer(
                tuple(tirx.IntImm("int64", n) for n in (size, count, rows.count)), dtype, f"parts{i}"
            )
            for i, (dtype, size) in enumerate(sizes.items())
        }

    def loads(self, reduction: Reduction, row: Any, part: Any) -> Exprs:
        """The results of a part."""
        return tuple(tirx.BufferLoad(self.buffers[dtype], at) for dtype, at in self._at(reduction, row, part))

    def stores(self, reduction: Reduction, row: Any, part: Any, values: Sequence[Any]) -> list[Any]:
        """Leave the results of a part."""
        places = self._at(reduction, row, part)
        return [tirx.BufferStore(self.buffers[d], v, at) for (d, at), v in zip(places, values, strict=True)]

    def _at(self, reduction: Reduction, row: Any, part: Any) -> list[tuple[str, list[Any]]]:
        found = next(places for known, places in self._places if known is reduction)
        return [(dtype, [nest.index(number), part, row]) for dtype, number in found]
