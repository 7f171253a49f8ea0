"""Matrix products and convolutions for GPUs: each work group loads tiles of both operands into shared memory.

A group computes a tile of outputs. For each step along the terms it loads a tile of each operand, waits at a barrier,
and accumulates the products; each item keeps its outputs in registers. Convolutions are products whose left operand is
gathered from the image (implicit GEMM). Operands are padded with zeros if a tile extends beyond them, so any shape is
supported. Items are not assumed to run in lock step: barriers separate loading from computing.

Shared memory has banks, 32 of 4 bytes on most GPUs, and simultaneous accesses to one bank are serialised. If
neighbouring items store neighbouring terms, which are a row of the tile apart, gaps between the terms put them into
different banks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tvm import tirx

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.contraction.product_axes import Axis, Product, last_index, product_of, uses
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import Packed
from heterocc.compiler.lower.kernels.choices import ranked
from heterocc.compiler.lower.kernels.expressions import dtype_of, substituted

SMALLEST = 16
"""The least rows, columns and terms for which sharing operands saves more than the barriers cost."""

GAP = 2
"""The elements of a gap: 32 items store 16 terms of two places, in the banks 2·term + place."""

BUSY = 64
"""The number of work groups that keeps a GPU busy. Smaller tiles are chosen to have as many."""


@dataclass(frozen=True, slots=True)
class GroupTile:
    """A tile of `rows` x `columns` outputs per work group and `high` x `wide` per item, with `terms` per step."""

    rows: int
    columns: int
    terms: int
    high: int
    wide: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.columns} by {self.high} x {self.wide}"

    @property
    def items(self) -> int:
        """The number of items of the group."""
        return self.rows // self.high * (self.columns // self.wide)

    def pitches(self, product: Product) -> tuple[int, int]:
        """The strides between terms, in elements, in the shared tiles of the left and the right operand."""
        return (
            self.rows + (0 if _neighbours(product.left, product.rows) else GAP),
            self.columns + (0 if _neighbours(product.right, product.columns) else GAP),
        )

    def shared(self, product: Product) -> int:
        """The shared memory of a group in bytes."""
        left, right = (2 if dtype_of(f) == "float16" else 4 for f in (product.left, product.right))
        rows, columns = self.pitches(product)
        return self.terms * (rows * left + columns * right)

    def groups(self, product: Product) -> int:
        """The number of work groups of the kernel."""
        across = -(-product.rows.length // self.rows) * -(-product.columns.length // self.columns)
        return int(product.batch.length * across)


TILES = (
    GroupTile(128, 64, 16, 8, 4),
    GroupTile(64, 64, 16, 4, 4),
    GroupTile(64, 32, 16, 4, 4),
    GroupTile(32, 32, 16, 4, 4),
    GroupTile(32, 32, 16, 4, 2),
    GroupTile(16, 16, 16, 2, 2),
)
"""The available tiles, from the fewest loads per output to the most work groups."""


def schedule_tiled(function: tirx.PrimFunc, limits: Limits, _: Collection[int] = ()) -> Packed | None:
    """The kernel with tiles in shared memory; None for small products and for devices without fast shared memory."""
    if limits.software or limits.vectors:
        return None
    product = product_of(function)
    if product is None or min(product.rows.length, product.columns.length, product.terms.length) < SMALLEST:
        return None
    tile = choose_group_tile(product, limits)
    return None if tile is None else Packed(_Kernel(product, tile, limits).written(function))


def choose_group_tile(product: Product, limits: Limits) -> GroupTile | None:
    """The largest tile that the limits allow and that leaves enough work groups, else the one with the most groups."""
    fitting = [t for t in TILES if t.items <= limits.group and t.shared(product) <= limits.shared]
    if not fitting:
        return None
    model = next((t for t in fitting if t.groups(product) >= BUSY), max(fitting, key=lambda t: t.groups(product)))
    return limits.choose("tile", ranked(model, fitting))


class _Kernel:
    """Writes the kernel for one product."""

    def __init__(self, product: Product, tile: GroupTile, limits: Limits) -> None:
        self._product = product
        self._tile = tile
        self._limits = limits
        self._sums = tirx.decl_buffer([tile.high * tile.wide], "float32", "sums", scope="local")
        self._pitches = tile.pitches(product)
        self._left, self._right = (
            tirx.decl_buffer([tile.terms * pitch], dtype_of(factor), name, scope="shared")
            for pitch, factor, name in zip(self._pitches, (product.left, product.right), ("left", "right"), strict=True)
        )

    def written(self, function: tirx.PrimFunc) -> tirx.PrimFunc:
        """The function with the tiled body."""
        count = self._tile.groups(self._product)

        def group(number: tirx.Expr) -> tirx.Stmt:
            here = number < nest.index(count) if nest.beyond(count, self._limits.grid) else None
            return nest.launch("threadIdx.x", self._tile.items, lambda item: self._group(number, item, here))

        body = nest.launch_groups(count, self._limits.grid, group)
        return nest.kernel(function, [self._sums, self._left, self._right], body)

    def _group(self, number: tirx.Expr, item: tirx.Expr, here: tirx.Expr | None) -> tirx.Stmt:
        """The outputs of a group; `here` is the condition that it has any, None if it always has."""
        product, tile = self._product, self._tile
        rows, columns = -(-product.rows.length // tile.rows), -(-product.columns.length // tile.columns)
        batch, row, column = nest.split_index(number, [product.batch.length, rows, columns])
        high, wide = tile.rows // tile.high, tile.columns // tile.wide
        if uses(product.place[-1], product.rows):  # neighbouring items store neighbouring elements
            along, up = nest.split_index(item, [wide, high])
        else:
            up, along = nest.split_index(item, [high, wide])
        first = [batch, row * tile.rows, column * tile.columns, up, along, item]
        return nest.named(first, lambda at: self._steps(_Place(here, *at)))

    def _steps(self, at: _Place) -> tirx.Stmt:
        tile, zero = self._tile, tirx.const(0, "float32")
        start = nest.loop(
            "cell", tile.high * tile.wide, lambda c: tirx.BufferStore(self._sums, zero, [c]), tirx.ForKind.UNROLLED
        )

        def step(number: tirx.Expr) -> tirx.Stmt:
            product = self._product
            load = [
                self._load(self._left, _Operand(product.left, product.rows, at.row, tile.rows), number, at),
                self._load(self._right, _Operand(product.right, product.columns, at.column, tile.columns), number, at),
            ]
            add = nest.loop("term", tile.terms, lambda term: self._add(term, at))
            return nest.sequence([*load, nest.barrier(), add, nest.barrier()])

        steps = nest.loop("step", -(-self._product.terms.length // tile.terms), step)
        return nest.sequence([start, steps, self._outputs(at)])

    def _load(self, shared: tirx.Buffer, operand: _Operand, step: tirx.Expr, at: _Place) -> tirx.Stmt:
        """Load an operand's tile into shared memory. Neighbouring items load neighbouring elements."""
        expr, axis, width = operand.expr, operand.axis, operand.width
        product, depth, items = self._product, self._tile.terms, self._tile.items
        pitch = int(shared.shape[0]) // depth

        def one(turn: tirx.Expr) -> tirx.BufferStore:
            linear = turn * items + at.item
            if _neighbours(expr, axis):
                term, place = nest.split_index(linear, [depth, width])
            else:
                place, term = nest.split_index(linear, [width, depth])
            across, along = operand.first + place, step * depth + term
            values = [*axis.at(across), *product.terms.at(along), *product.batch.at(at.batch)]
            inside = all_of(
                at.here,
                across < nest.index(axis.length) if axis.length % width else None,
                along < nest.index(product.terms.length) if product.terms.length % depth else None,
            )
            value = substituted(expr, [(old, new.astype(dtype_of(old))) for old, new in values])
            if inside is not None:
                value = tirx.if_then_else(inside, value, tirx.const(0, dtype_of(expr)))
            return tirx.BufferStore(shared, value, [term * pitch + place])

        return nest.loop("turn", depth * width // items, one, tirx.ForKind.UNROLLED)

    def _add(self, term: tirx.Expr, at: _Place) -> tirx.Stmt:
        """Add one term to all outputs of an item."""
        tile = self._tile
        rows, columns = self._pitches
        left = [tirx.BufferLoad(self._left, [term * rows + r]) for r in self._rows(at.up)]
        right = [tirx.BufferLoad(self._right, [term * columns + c]) for c in self._columns(at.along)]
        names = [tirx.Var(f"factor{i}", "float32") for i in range(tile.high + tile.wide)]
        binds = [tirx.Bind(n, v.astype("float32")) for n, v in zip(names, [*left, *right], strict=True)]
        sums = []
        for i in range(tile.high):
            for j in range(tile.wide):
                cell = [nest.index(i * tile.wide + j)]
                total = tirx.BufferLoad(self._sums, cell) + names[i] * names[tile.high + j]
                sums.append(tirx.BufferStore(self._sums, total, cell))
        return nest.sequence([*binds, *sums])

    def _outputs(self, at: _Place) -> tirx.Stmt:
        product, tile = self._product, self._tile
        stores = []
        for i, up in enumerate(self._rows(at.up)):
            for j, along in enumerate(self._columns(at.along)):
                row, column = at.row + up, at.column + along
                values = [*product.batch.at(at.batch), *product.rows.at(row), *product.columns.at(column)]
                inside = all_of(
                    at.here,
                    row < nest.index(product.rows.length) if product.rows.length % tile.rows else None,
                    column < nest.index(product.columns.length) if product.columns.length % tile.columns else None,
                )
                total = tirx.BufferLoad(self._sums, [nest.index(i * tile.wide + j)])
                stores.append(nest.when(inside, product.output(values, total)))
        return nest.sequence(stores)

    def _rows(self, up: tirx.Expr) -> list[tirx.Expr]:
        """The rows of an item within the tile."""
        return [up + i * (self._tile.rows // self._tile.high) for i in range(self._tile.high)]

    def _columns(self, along: tirx.Expr) -> list[tirx.Expr]:
        """The columns of an item within the tile."""
        return [along + j * (self._tile.columns // self._tile.wide) for j in range(self._tile.wide)]


@dataclass(frozen=True, slots=True)
class _Place:
    """The indices of an item.

    `here` is the condition that its group has outputs, None if it always has. The other fields are the batch, the first
    row and column of the group's tile, the item's place in the tile, and its index in the group.
    """

    here: tirx.Expr | None
    batch: tirx.Var
    row: tirx.Var
    column: tirx.Var
    up: tirx.Var
    along: tirx.Var
    item: tirx.Var


@dataclass(frozen=True, slots=True)
class _Operand:
    """A factor of the product, its axis other than the terms, and the group's first place and extent along that."""

    expr: tirx.Expr
    axis: Axis
    first: tirx.Var
    width: int


def _neighbours(expr: tirx.Expr, axis: Axis) -> bool:
    """Whether neighbours along an axis are contiguous in an operand's memory; otherwise its terms are."""
    return uses(last_index(expr), axis)


def all_of(*conditions: tirx.Expr | None) -> tirx.Expr | None:
    """The conjunction of the conditions; None if all are None."""
    found = None
    for condition in conditions:
        if condition is not None:
            found = condition if found is None else tirx.And(found, condition)
    return found
