"""Convolutions of 3 x 3 taps by Winograd's minimal filtering, which takes (m + 2)² products for m x m outputs.

There are three kernels: they transform the input, multiply, and transform the output. Each of the (m + 2)² values of a
tile is stored in a different plane, so that the products of a plane are one matrix product over channels. Weights are
transformed when compiling. Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
https://arxiv.org/abs/1509.09308.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod

import tvm_ffi
from tvm import s_tir, sym, te, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.contraction.contraction import schedule_contraction
from heterocc.compiler.lower.gpu.contraction.filtering import F2, F4, Filtering, Matrix, Transformed
from heterocc.compiler.lower.gpu.contraction.names import Names
from heterocc.compiler.lower.gpu.contraction.product_axes import Product, product_of
from heterocc.compiler.lower.gpu.contraction.tile import multiple
from heterocc.compiler.lower.gpu.contraction.tiled import all_of, schedule_tiled
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import Packed
from heterocc.compiler.lower.gpu.turns import Element, Store, loaded_in_turns, stored_in_turns
from heterocc.compiler.lower.kernels.choices import ranked
from heterocc.compiler.lower.kernels.expressions import dtype_of, substituted

CHANNELS = 16
"""The least input and output channels for which filtering saves more than the transforms cost."""

ROWS = 8
"""The number of tiles is padded to a multiple of this for the products."""

TRANSFORM = 16
"""The cost of transforming an element of the input and of the output, in multiply-adds."""

GAIN = 1.2
"""The least ratio of work saved for which three kernels are faster than one."""

ITEMS = 64
"""The work items of a group in the transforms."""


@dataclass(frozen=True, slots=True)
class Window:
    """A convolution of 3 x 3 taps with stride 1: its matrix product, and the roles of the iterators.

    `images` has at most one iterator. `pixels` are row and column of an output, `taps` those of a weight. `weights` is
    a parameter of the kernel.
    """

    product: Product
    weights: tirx.Buffer
    images: tuple[tirx.Var, ...]
    pixels: tuple[tirx.Var, tirx.Var]
    taps: tuple[tirx.Var, tirx.Var]
    channel: tirx.Var
    outputs: tirx.Var
    shape: tuple[int, int, int]

    @property
    def channels(self) -> tuple[int, int]:
        """The channels of the input and of the output."""
        return self.product.terms.length // 9, self.product.columns.length

    def tiles(self, filtering: Filtering) -> tuple[int, int, int]:
        """The number of tiles along images, height and width."""
        images, height, width = self.shape
        return images, -(-height // filtering.m), -(-width // filtering.m)

    def input(self, image: tirx.Expr, row: tirx.Expr, column: tirx.Expr, channel: tirx.Expr) -> tirx.Expr:
        """An element of the padded input."""
        zero = nest.index(0)
        values = [*((v, image) for v in self.images), *zip(self.pixels, (row, column), strict=True)]
        values += [(self.channel, channel), *((tap, zero) for tap in self.taps)]
        return substituted(self.product.left, [(old, new.astype(dtype_of(old))) for old, new in values])


def schedule_winograd(function: tirx.PrimFunc, limits: Limits, packable: Collection[int] = ()) -> Packed | None:
    """The convolution in three kernels; None for other kernels, for weights that are not packable, or without gain."""
    window = window_of(function)
    if window is None:
        return None
    parameter = next((i for i, p in enumerate(function.params) if p.same_as(window.weights)), -1)
    if parameter not in packable:
        return None
    filtering = choose_filtering(window, limits)
    if filtering is None:
        return None
    multiplied = _multiplied(window, filtering, limits)
    if multiplied is None:
        return None
    then = next((layout for index, layout in multiplied.layouts if index == 1), None)
    kernels = _Kernels(window, filtering, limits)
    return Packed(
        kernels.written(function, parameter, multiplied.function), ((parameter, Transformed(filtering, then)),)
    )


def choose_filtering(window: Window, limits: Limits) -> Filtering | None:
    """The filtering with the least work; None if the direct convolution has less."""
    inner, outer = window.channels
    images, height, width = window.shape
    if min(inner, outer) < CHANNELS:
        return None

    def work(filtering: Filtering) -> float:
        tiles = multiple(prod(window.tiles(filtering)), ROWS)
        return filtering.side**2 * tiles * (inner * outer + TRANSFORM * (inner + outer))

    best = min((F2, F4), key=work)
    gains = work(best) * GAIN < 9 * images * height * width * inner * outer
    return limits.choose("filtering", ranked(best if gains else None, (F2, F4)))


def window_of(function: tirx.PrimFunc) -> Window | None:
    """The kernel as a convolution of 3 x 3 taps; None if it has another form."""
    product = product_of(function)
    if product is None or product.batch.length > 1 or product.terms.extents[1:] != (3, 3):
        return None
    if len(product.terms.extents) != 3 or len(product.columns.extents) != 1 or len(product.rows.extents) not in (2, 3):
        return None
    if any(dtype_of(e) != "float32" for e in (product.left, product.right, product.sum_)):
        return None
    *images, row, column = product.rows.iterators
    (channel, *taps), (outputs,) = product.terms.iterators, product.columns.iterators
    right = product.right
    if not isinstance(right, TensorLoad) or len(right.indices) != 4:
        return None
    if not all(i.same_as(v) for i, v in zip(right.indices, (outputs, channel, *taps), strict=True)):
        return None
    pairs = ((row, taps[0]), (column, taps[1]))
    if not all(_slides(product, pixel, tap) for pixel, tap in pairs):
        return None
    *count, height, width = product.rows.extents
    shape = (prod(count), height, width)
    return Window(product, right.source, tuple(images), (row, column), (taps[0], taps[1]), channel, outputs, shape)


def _slides(product: Product, pixel: tirx.Var, tap: tirx.Var) -> bool:
    """Whether the next tap of a pixel reads the same element as this tap of the next pixel."""
    analyzer = sym.Analyzer()
    next_pixel, next_tap = (
        analyzer.simplify(substituted(product.left, [(v, v + tirx.const(1, dtype_of(v)))])) for v in (pixel, tap)
    )
    return bool(tvm_ffi.structural_equal(next_pixel, next_tap))


def _shapes(window: Window, filtering: Filtering, limits: Limits) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """The shapes of the transformed inputs [plane, in, tile], and of the products [plane, out, tile].

    On a CPU, which stores vectors of channels, the latter is [tile, plane, out].
    """
    (inner, outer), tiles = window.channels, prod(window.tiles(filtering))
    planes = filtering.side**2
    return (planes, inner, tiles), (tiles, planes, outer) if limits.vectors else (planes, outer, tiles)


def _multiplied(window: Window, filtering: Filtering, limits: Limits) -> Packed | None:
    """The scheduled kernel for the products of all planes, with weights [plane, out, in]."""
    inputs, products = (_sizes(shape) for shape in _shapes(window, filtering, limits))
    inner, outer = _sizes(window.channels)
    data = te.placeholder(inputs, "float32", "planes")
    weights = te.placeholder((inputs[0], outer, inner), "float32", "weights")
    term = te.reduce_axis((tirx.IntImm("int64", 0), inner), "term")

    def product(*place: tirx.Var) -> tirx.Reduce:
        tile, plane, channel = place if limits.vectors else (place[2], place[0], place[1])
        return te.sum(data[plane, term, tile] * weights[plane, channel, term], axis=term)

    function = te.create_prim_func([data, weights, te.compute(products, product, "products")])
    ways = ("register tile",) if limits.software or limits.vectors else ("shared tile", "register tile")
    tiled = schedule_tiled(function, limits) if limits.choose("products by", ways) == "shared tile" else None
    return tiled or schedule_contraction(function, limits, {1})


class _Kernels:
    """Writes the kernels of one convolution."""

    def __init__(self, window: Window, filtering: Filtering, limits: Limits) -> None:
        self._window = window
        self._filtering = filtering
        self._limits = limits
        inputs, products = _shapes(window, filtering, limits)
        self._inputs = _buffer("inputs", inputs)
        self._products = _buffer("products", products)
        self._parts: list[tirx.Buffer] = []

    def written(self, function: tirx.PrimFunc, parameter: int, multiplied: tirx.PrimFunc) -> tirx.PrimFunc:
        """The function with three kernels, and its weights in the shape for the products."""
        weights = multiplied.params[1]
        params = [weights if i == parameter else p for i, p in enumerate(function.params)]
        block = multiplied.body.block
        given = [(multiplied.params[0], self._inputs), (multiplied.params[2], self._products)]
        product = tvm_ffi.structural_map(
            block, [(tirx.Var, lambda v: next((new for old, new in given if old.same_as(v)), v))], order="post"
        )
        inner, outer = self._window.channels
        transforms = (
            self._launched(inner, self._input, False),
            self._launched(outer, self._output, self._limits.vectors),
        )
        body = nest.sequence([transforms[0], product.body, transforms[1]])
        buffers = [self._inputs, self._products, *self._parts, *product.alloc_buffers]
        root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body, None, buffers))
        return tirx.PrimFunc(params, root, attrs=function.attrs)

    def _launched(
        self, channels: int, body: Callable[[tirx.Expr, tirx.Expr], tirx.Stmt], channels_last: bool
    ) -> tirx.Stmt:
        """Run `body(channel, tile)` in a work item for each; neighbouring items have neighbouring tiles or channels."""
        tiles = prod(self._window.tiles(self._filtering))
        count, items = channels * tiles, min(ITEMS, self._limits.group)

        def item(number: tirx.Expr) -> tirx.Stmt:
            if channels_last:
                return nest.named(nest.split_index(number, [tiles, channels]), lambda at: body(at[1], at[0]))
            return nest.named(nest.split_index(number, [channels, tiles]), lambda at: body(at[0], at[1]))

        def group(place: tirx.Expr) -> tirx.Stmt:
            def one(index: tirx.Expr) -> tirx.Stmt:
                number = place * items + index
                inside = number < nest.index(count)
                even = count % items == 0 and not nest.beyond(count // items, self._limits.grid)
                return nest.when(None if even else inside, item(number))

            return nest.launch("threadIdx.x", items, one)

        return nest.launch_groups(-(-count // items), self._limits.grid, group)

    def _input(self, channel: tirx.Expr, tile: tirx.Expr) -> tirx.Stmt:
        """Load a tile of the input and store its transform, one element in each plane."""
        side, m = self._filtering.side, self._filtering.m
        images, high, wide = self._window.tiles(self._filtering)
        image, row, column = nest.split_index(tile, [images, high, wide])
        _, height, width = self._window.shape

        def element(i: int | tirx.Expr, j: int) -> tirx.Expr:
            down, across = row * m + i, column * m + j
            inside = all_of(
                down < nest.index(height + 2) if high * m > height and not _within(i, 2) else None,
                across < nest.index(width + 2) if wide * m > width and not _within(j, 2) else None,
            )
            value = self._window.input(image, down, across, channel)
            return value if inside is None else tirx.if_then_else(inside, value, tirx.const(0, "float32"))

        def store(i: int | tirx.Expr, j: int, value: tirx.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._inputs, value, [i * nest.index(side) + j, channel, tile])

        return self._transformed(self._filtering.inputs, element, store)

    def _output(self, channel: tirx.Expr, tile: tirx.Expr) -> tirx.Stmt:
        """Load the products of a tile, one element from each plane, and store the transformed outputs."""
        side, m = self._filtering.side, self._filtering.m
        images, high, wide = self._window.tiles(self._filtering)
        image, row, column = nest.split_index(tile, [images, high, wide])
        _, height, width = self._window.shape

        def element(i: int | tirx.Expr, j: int) -> tirx.Expr:
            plane = i * nest.index(side) + j
            place = [tile, plane, channel] if self._limits.vectors else [plane, channel, tile]
            return tirx.BufferLoad(self._products, place)

        def store(i: int | tirx.Expr, j: int, value: tirx.Expr) -> tirx.Stmt:
            down, across = row * m + i, column * m + j
            inside = all_of(
                down < nest.index(height) if high * m > height and not _within(i, 1) else None,
                across < nest.index(width) if wide * m > width and not _within(j, 1) else None,
            )
            values = [*((v, image) for v in self._window.images), (self._window.outputs, channel)]
            values += zip(self._window.pixels, (down, across), strict=True)
            return nest.when(inside, self._window.product.output(values, value))

        return self._transformed(self._filtering.outputs, element, store)

    def _transformed(self, matrix: Matrix, element: Element, store: Store) -> tirx.Stmt:
        """Load a tile, multiply it by the matrix from both sides, and store the result."""
        side, rows = self._filtering.side, len(matrix)
        names = Names()
        if not self._limits.side_by_side:
            loaded = [[names.bind(element(i, j)) for j in range(side)] for i in range(side)]
            found = names.transformed(matrix, loaded)
            stores = [store(i, j, found[i][j]) for i in range(rows) for j in range(rows)]
            return nest.sequence([*names.binds, *stores])
        values, results = (nest.add_part(self._parts, n * n, "float32") for n in (side, rows))
        load = loaded_in_turns(values, side, element)
        loaded = [[names.bind(_at(values, i * side + j)) for j in range(side)] for i in range(side)]
        found = [value for row in names.transformed(matrix, loaded) for value in row]
        keep = [tirx.BufferStore(results, value, [nest.index(k)]) for k, value in enumerate(found)]
        return nest.sequence([load, *names.binds, *keep, stored_in_turns(results, rows, store)])


def _within(place: int | tirx.Expr, inside: int) -> bool:
    """Whether a place of a tile is one of the first, which are never beyond the border."""
    return isinstance(place, int) and place < inside


def _at(buffer: tirx.Buffer, place: int) -> tirx.Expr:
    return tirx.BufferLoad(buffer, [nest.index(place)])


def _buffer(name: str, shape: Sequence[int]) -> tirx.Buffer:
    return tirx.decl_buffer(_sizes(shape), "float32", name)


def _sizes(shape: Sequence[int]) -> tuple[tirx.Expr, ...]:
    return tuple(tirx.IntImm("int64", n) for n in shape)
