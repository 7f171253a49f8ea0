"""Matrix products and convolutions with sizes that are known only at run time, in tiles of registers.

Each work item computes a tile of rows x columns of the result. Rows are all axes that only the first operand has, such
as the batch and the pixels of a convolution, counted as one axis, so that tiles are full whatever each of them is. Rows
and columns beyond the end are computed from the last one, and not stored: the loop over the terms has no condition.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.contraction.product_axes import Product, product_of
from heterocc.compiler.lower.gpu.contraction.tile import GPU_GROUP, Tile, choose_tile
from heterocc.compiler.lower.gpu.contraction.tiled import all_of
from heterocc.compiler.lower.gpu.limits import ENDLESS, Limits
from heterocc.compiler.lower.gpu.packed import LanesLast, Packed
from heterocc.compiler.lower.kernels.expressions import dtype_of, substituted

USUAL = 64
"""The size for which a tile is chosen if the size of an axis is known only at run time."""

FEWEST = 8
"""The least columns and terms, where these are known, for which tiles are faster than single results."""

_ROW_OF_GROUPS = 16
"""Work groups along the first axis of the grid, on devices with short axes."""


def schedule_sized(function: tirx.PrimFunc, limits: Limits, packable: Collection[int] = ()) -> Packed | None:
    """The kernel with a tile for each work item; None if it is not such a product. `packable` may be repacked."""
    product = product_of(function, sized=True)
    if product is None:
        return None
    for axis in (product.columns, product.terms):
        if isinstance(axis.length, int) and axis.length < FEWEST:
            return None
    rows, columns = (n if isinstance(n, int) else USUAL for n in (product.rows.length, product.columns.length))
    tile = choose_tile(rows, columns, USUAL, limits, pads_lanes=True)
    weight = _weight(function, product, packable)
    return _Kernel(product, tile, limits, weight).written(function)


@dataclass(frozen=True, slots=True)
class _Weight:
    """A parameter that is repacked: its index, and the axis along which it has a lane of each column."""

    parameter: int
    buffer: tirx.Buffer
    axis: int


def _weight(function: tirx.PrimFunc, product: Product, packable: Collection[int]) -> _Weight | None:
    """The right operand, if it is a constant with an axis of the columns alone."""
    right = product.right
    if not isinstance(right, TensorLoad) or len(product.columns.iterators) != 1:
        return None
    parameter = next((i for i, p in enumerate(function.params) if right.source.same_as(p)), -1)
    (column,) = product.columns.iterators
    axes = [i for i, index in enumerate(right.indices) if index.same_as(column)]
    used = [v for index in right.indices for v in tirx.analysis.undefined_vars(index) if v.same_as(column)]
    if parameter not in packable or len(axes) != 1 or len(used) != 1:
        return None
    if not isinstance(product.columns.length, int) or int(right.source.shape[axes[0]]) != product.columns.length:
        return None
    return _Weight(parameter, right.source, axes[0])


class _Kernel:
    """Writes the kernel for one product."""

    def __init__(self, product: Product, tile: Tile, limits: Limits, weight: _Weight | None) -> None:
        self._product = product
        self._tile = tile
        self._limits = limits
        self._weight = weight
        self._sums = tirx.decl_buffer([tile.rows * tile.lanes], "float32", "sums", scope="local")
        count = tile.rows * len(product.rows.iterators) + len(product.batch.iterators)
        self._places = tirx.decl_buffer([count], "int64", "places", scope="local")
        self._results = (
            tirx.decl_buffer(self._sums.shape, "float32", "results", scope="local") if limits.vectors else None
        )
        self._packed: tirx.Buffer | None = None
        self._layout: LanesLast | None = None
        if weight is not None:
            self._layout = LanesLast(weight.axis, tile.lanes)
            others = [n for i, n in enumerate(weight.buffer.shape) if i != weight.axis]
            groups = -(-int(weight.buffer.shape[weight.axis]) // tile.lanes)
            shape = [nest.index(groups), *others, nest.index(tile.lanes)]
            self._packed = tirx.decl_buffer(shape, weight.buffer.dtype, weight.buffer.name)

    def written(self, function: tirx.PrimFunc) -> Packed:
        """The function with the tiled body, and the layout of its weight."""
        product, tile = self._product, self._tile
        down = nest.divided_up(product.rows.length, tile.rows)
        across = nest.divided_up(product.columns.length, tile.lanes)
        count = product.batch.length * down * across
        items = 1 if self._limits.vectors else min(GPU_GROUP, self._limits.group)
        short = self._limits.grid < ENDLESS
        groups = nest.divided_up(count, items)

        def item(number: tirx.Expr) -> tirx.Stmt:
            # Neighbouring items have neighbouring rows, so that they read the same columns.
            batch, column, row = nest.split_index(number, [product.batch.length, across, down])
            return nest.named([batch, row * tile.rows, column], lambda at: self._tile_at(*at))

        def group(number: tirx.Expr) -> tirx.Stmt:
            def guarded(place: tirx.Expr) -> tirx.Stmt:
                here = number * nest.index(items) + place
                exact = items == 1 and not short
                return nest.named([here], lambda at: nest.when(None if exact else at[0] < count, item(at[0])))

            return guarded(nest.index(0)) if items == 1 else nest.launch("threadIdx.x", items, guarded)

        if short:
            lines = nest.divided_up(groups, _ROW_OF_GROUPS)
            body = nest.launch(
                "blockIdx.y",
                lines,
                lambda y: nest.launch(
                    "blockIdx.x", _ROW_OF_GROUPS, lambda x: group(y * nest.index(_ROW_OF_GROUPS) + x)
                ),
            )
        else:
            body = nest.launch("blockIdx.x", groups, group)
        buffers = [self._sums, self._places, *([self._results] if self._results is not None else [])]
        new = nest.kernel(function, buffers, body)
        if self._weight is None or self._packed is None or self._layout is None:
            return Packed(new)
        params = list(new.params)
        params[self._weight.parameter] = self._packed
        return Packed(tirx.PrimFunc(params, new.body, attrs=new.attrs), ((self._weight.parameter, self._layout),))

    def _tile_at(self, batch: tirx.Expr, first: tirx.Expr, column: tirx.Expr) -> tirx.Stmt:
        """The tile of a row (its number) and a group of columns (the group's number)."""
        product, tile = self._product, self._tile
        rows = [_inside(first + i, product.rows.length, tile.rows) for i in range(tile.rows)]
        values = [value for row in rows for _, value in product.rows.at(row)]
        values += [value for _, value in product.batch.at(batch)]
        # In memory, as TVM copies the values of variables into every expression that reads them.
        held = [tirx.BufferStore(self._places, value, [nest.index(k)]) for k, value in enumerate(values)]
        at = [tirx.BufferLoad(self._places, [nest.index(k)]) for k in range(len(values))]
        width = len(product.rows.iterators)
        places = [
            list(zip(product.rows.iterators, at[i * width : (i + 1) * width], strict=True)) for i in range(tile.rows)
        ]
        outer = list(zip(product.batch.iterators, at[width * tile.rows :], strict=True))
        zero = tirx.const(0, "float32")
        start = nest.loop(
            "cell",
            tile.rows * tile.lanes,
            lambda cell: tirx.BufferStore(self._sums, zero, [cell]),
            tirx.ForKind.UNROLLED,
        )
        return nest.sequence(
            [*held, start, self._terms(places, outer, column), self._stores(places, outer, first, column)]
        )

    def _terms(self, rows: Sequence[_Values], outer: _Values, column: tirx.Expr) -> tirx.Stmt:
        """The loops over the terms."""
        product = self._product

        def nested(place: int, values: _Values) -> tirx.Stmt:
            if place == len(product.terms.iterators):
                return self._add(rows, [*outer, *values], column)
            iterator, extent = product.terms.iterators[place], product.terms.extents[place]
            return nest.loop(f"term{place}", extent, lambda at: nested(place + 1, [*values, (iterator, at)]))

        return nested(0, [])

    def _add(self, rows: Sequence[_Values], values: _Values, column: tirx.Expr) -> tirx.Stmt:
        """Add one term to all results of the tile."""
        product, tile = self._product, self._tile
        left = [tirx.Var(f"left{i}", "float32") for i in range(tile.rows)]
        binds: list[tirx.Stmt] = [
            tirx.Bind(name, _at(product.left, [*values, *row])) for name, row in zip(left, rows, strict=True)
        ]
        cells = [(i, nest.index(i * tile.lanes)) for i in range(tile.rows)]

        def total(cell: tirx.Expr, row: int, factor: tirx.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._sums, tirx.BufferLoad(self._sums, [cell]) + left[row] * factor, [cell])

        if self._contiguous:
            sums = [
                nest.loop(
                    "lane",
                    tile.lanes,
                    lambda lane, i=i, start=start: total(start + lane, i, self._right(values, column, lane)),  # type: ignore[misc]
                    tirx.ForKind.VECTORIZED,
                )
                for i, start in cells
            ]
            return nest.sequence([*binds, *sums])
        right = [tirx.Var(f"right{i}", "float32") for i in range(tile.lanes)]
        binds += [tirx.Bind(name, self._right(values, column, nest.index(k))) for k, name in enumerate(right)]
        return nest.sequence(
            [*binds, *(total(start + k, i, name) for i, start in cells for k, name in enumerate(right))]
        )

    @property
    def _contiguous(self) -> bool:
        """Whether the lanes of a tile are read as a vector."""
        return self._limits.vectors and self._packed is not None and self._tile.lanes > 1

    def _right(self, values: _Values, column: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
        product, tile = self._product, self._tile
        if self._weight is not None and self._packed is not None:
            right = product.right
            others = [_at_index(n, values) for i, n in enumerate(right.indices) if i != self._weight.axis]
            return tirx.BufferLoad(self._packed, [column, *others, lane]).astype("float32")
        place = _inside(column * tile.lanes + lane, product.columns.length, tile.lanes)
        return _at(product.right, [*values, *product.columns.at(place)])

    def _stores(self, rows: Sequence[_Values], outer: _Values, first: tirx.Expr, column: tirx.Expr) -> tirx.Stmt:
        """The stores of a tile: unrolled, or of a large tile in loops, which read a copy of the sums.

        With a variable index into the sums a driver would keep them in memory.
        """
        product, tile = self._product, self._tile

        def one(i: tirx.Expr, k: tirx.Expr, row: _Values, sums: tirx.Buffer) -> tirx.Stmt:
            place = column * tile.lanes + k
            values = [*outer, *row, *product.columns.at(place)]
            inside = all_of(_guard(place, product.columns.length, tile.lanes))
            return nest.when(inside, product.output(values, tirx.BufferLoad(sums, [i * tile.lanes + k])))

        if self._results is None:
            stores = []
            for i, row in enumerate(rows):
                along = [one(nest.index(i), nest.index(k), row, self._sums) for k in range(tile.lanes)]
                guard = _guard(first + i, product.rows.length, tile.rows) if i else None
                stores.append(nest.when(guard, nest.sequence(along)))
            return nest.sequence(stores)
        results = self._results
        copies = nest.loop(
            "cell",
            tile.rows * tile.lanes,
            lambda cell: tirx.BufferStore(results, tirx.BufferLoad(self._sums, [cell]), [cell]),
            tirx.ForKind.UNROLLED,
        )

        def line(i: tirx.Expr) -> tirx.Stmt:
            row = product.rows.at(first + i)
            along = nest.loop("lane", tile.lanes, lambda k: one(i, k, row, results))
            return nest.when(_guard(first + i, product.rows.length, tile.rows), along)

        return nest.sequence([copies, nest.loop("row", tile.rows, line)])


_Values = list[tuple[tirx.Var, tirx.Expr]]


def _guard(place: tirx.Expr, length: int | tirx.Expr, step: int) -> tirx.Expr | None:
    """The condition that a place is within an axis; None if tiles of `step` divide it."""
    if isinstance(length, int) and length % step == 0:
        return None
    return place < nest.index(length)


def _inside(place: tirx.Expr, length: int | tirx.Expr, step: int) -> tirx.Expr:
    """The place, or the last one of the axis."""
    if _guard(place, length, step) is None:
        return place
    # Not below 0, so that divisions of it need not test its sign.
    return tirx.max(tirx.min(place, nest.index(length) - 1), nest.index(0))


def _at(expr: tirx.Expr, values: _Values) -> tirx.Expr:
    """A factor at values of the iterators, as float32."""
    return _at_index(expr, values).astype("float32")


def _at_index(expr: tirx.Expr, values: _Values) -> tirx.Expr:
    return substituted(expr, [(old, new.astype(dtype_of(old))) for old, new in values])
