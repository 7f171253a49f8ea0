"""Products that weight the channels of a map: the last layer of a squeeze-and-excitation block (Hu et al. 2018).

A kernel of a small product and a map that reads it at one place for each channel: each task computes the weights of
some channels in a vector, with what the kernel makes of them, and then the map on these channels. So neither does a
barrier lie between the two, nor are functions of weights computed for each pixel.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import Element, kept_stages
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.maps.maps import FUNCTION, PARALLEL_ELEMENTS
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, at, index, is_dense, offset, shape_of
from heterocc.compiler.lower.cpu.generate.products.product_form import Product, find_product
from heterocc.compiler.lower.cpu.generate.read import Kernel, Nest, read_gated
from heterocc.compiler.lower.cpu.generate.spans import Move, in_vectors, share_vectors
from heterocc.compiler.lower.cpu.generate.tiles import runs
from heterocc.compiler.lower.cpu.sizes import exceeds, is_number, larger, smaller, typical
from heterocc.compiler.lower.kernels.expressions import is_function, loads, outside_loads, substituted

FEWEST_PIXELS = 4
"""Pixels of a channel below which this form has nothing to make vectors of."""


@dataclass(frozen=True, slots=True)
class Gated:
    """`map_` reads what `kernel`, the matrix product `product`, computes at a place of its loops `image` and `channel`.

    `pixels` is the map's axis of vectors, `rest` are its other loops.
    """

    kernel: Kernel
    product: Product
    map_: Nest
    image: int | None
    channel: int
    pixels: Axis
    rest: tuple[int, ...]


_LEAST = 4
"""Fewest channels in a vector."""


def generate_gated(
    function: tirx.PrimFunc, weights: Collection[int], isa: Isa
) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as a product that weights channels, None if it is not one."""
    if isa.lanes < _LEAST:
        return None  # as for sizes that are smaller than a vector
    parts = read_gated(function, weights)
    gated = None if parts is None else find_gated(*parts)
    if gated is None:
        return None
    writer = _Writer(gated, isa)
    return emit.written(gated.map_, {writer.packing.argument: writer.packing.size}, writer.write), (writer.packing,)


def find_gated(kernel: Kernel, map_: Nest) -> Gated | None:
    """Read a product with a weight as second factor, and a map after it, as weights of channels."""
    product = find_product(kernel)
    if product is None or product.outer or product.vectors.weight is None:
        return None
    places = _places(kernel, map_, product)
    if places is None:
        return None
    image, channel = places
    rest = [n for n, e in enumerate(map_.extents) if e > 1 and n not in (image, channel)]
    read = [r for s in map_.after for r in loads(_own(s.value, s.iters, map_)) if map_.argument(r.source) is not None]
    forms = [offset(r.indices, r.source, map_.loops) for r in read]
    known = [f for f in forms if f is not None]
    if not rest or rest[-1] < channel or len(known) < len(forms):
        return None
    pixels = map_.last_run(rest, known)
    if typical(pixels.length) < FEWEST_PIXELS or not all(is_dense(pixels.step(f)) for f in known):
        return None
    return Gated(kernel, product, map_, image, channel, pixels, tuple(n for n in rest if n not in pixels.loops))


def _own(value: tirx.Expr, iters: tuple[tirx.Var, ...], map_: Nest) -> tirx.Expr:
    return substituted(map_.inlined(value), list(zip(iters, map_.loops, strict=True)))


def _places(kernel: Kernel, map_: Nest, product: Product) -> tuple[int | None, int] | None:
    """The map's loops along which it reads the product's rows, None without rows, and columns."""
    places: set[tuple[int | None, int]] = set()
    for stage in map_.after:
        for load in loads(_own(stage.value, stage.iters, map_)):
            if not _is_gate(kernel, load):
                continue
            form = offset(load.indices, load.source, map_.loops)
            steps = [] if form is None else [(n, s) for n, s in enumerate(form.steps) if s and map_.extents[n] > 1]
            rows, columns = product.rows.length, product.columns.length
            along = [n for n, s in steps if s == 1 and map_.extents[n] == columns]
            down = [n for n, s in steps if n not in along and s == columns and map_.extents[n] == rows]
            if form is None or form.constant or len(along) != 1 or len(down) != (rows > 1) or len(steps) > 2:
                return None
            if len(steps) != 1 + len(down):
                return None
            places.add((down[0] if down else None, along[0]))
    return places.pop() if len(places) == 1 else None


def _is_gate(kernel: Kernel, load: TensorLoad) -> bool:
    return any(load.source.same_as(b) for b in (kernel.sum_, *(s.buffer for s in kernel.after)))


class _Writer:
    """Writes a gated map: blocks of channels, shared by the threads with parts of the pixels."""

    def __init__(self, gated: Gated, isa: Isa) -> None:
        self.gated, self.isa = gated, isa
        channels = gated.product.columns.length
        sizes = [n for n in (16, 8, _LEAST) if n <= isa.lanes]
        self.block = min(sizes, key=lambda n: (-(-channels // n) * n, -n))
        self.block = min(self.block, channels) if channels < _LEAST else self.block
        self.blocks = -(-channels // self.block)
        self.packing = self._packing()
        functions = sum(is_function(n) for s in gated.map_.after for n in outside_loads(s.value))
        work = math.prod(gated.map_.extents) * (1 + FUNCTION * functions)
        self.kind = "parallel" if typical(work) >= PARALLEL_ELEMENTS else "serial"
        self.lanes = isa.lanes
        length = gated.pixels.length
        while is_number(length) and self.lanes > length:
            self.lanes //= 2
        tasks = gated.product.rows.length * self.blocks
        self.size, self.parts = length, 1
        if is_number(length):
            wanted = -(-emit.TASKS // typical(tasks)) if self.kind == "parallel" else 1
            self.size = min(length, -(-length // (wanted * self.lanes)) * self.lanes)
            self.parts = -(-length // self.size)
        elif self.kind == "parallel":
            self.parts = larger(1, smaller(-(-emit.TASKS // tasks), -(-length // self.lanes)))

    def _packing(self) -> Panels:
        product = self.gated.product
        side = product.vectors
        shape = shape_of(side.load.source)
        assert shape is not None and side.weight is not None
        loops = self.gated.kernel.loops
        axes = {n: i for i, e in enumerate(side.load.indices) for n, v in enumerate(loops) if v.same_as(e)}
        last = [axes[n] for n in (*product.terms.loops, *product.columns.loops)]
        order = (*(i for i in range(len(shape)) if i not in last), *last)
        tiles = runs(self.blocks, 1)
        terms, channels = product.terms.length, product.columns.length
        return Panels(side.weight, shape, order, 1, terms, channels, self.block, tiles)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        gated = self.gated
        extents = (gated.product.rows.length, self.blocks, self.parts)
        with emit.loop(math.prod(extents), self.kind) as task:
            row, block, part = emit.unpacked(task, extents)
            first = block * index(self.block)
            if exceeds(gated.product.columns.length, self.block):
                first = tirx.min(first, index(gated.product.columns.length - self.block))
            gates = self._gates(arguments, row, block, first)
            with emit.loop(self.block) as number:
                self._weigh(arguments, gates, (row, first, number), part)

    def _gates(
        self, arguments: Arguments, row: tirx.Expr, block: tirx.Expr, first: tirx.Expr
    ) -> list[tuple[tirx.Buffer, tirx.Buffer]]:
        """The product for a block of channels: the buffers of its stages, and the vectors that hold their values."""
        kernel, product = self.gated.kernel, self.gated.product
        numbers = arguments.flat(product.numbers.load.source)
        packed = arguments.flat(product.vectors.load.source)
        isa = replace(self.isa, lanes=self.block)

        def broadcast(_row: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
            where = at(product.numbers.form, [(product.rows, row), (product.terms, term)])
            assert where is not None
            return numbers[where]

        def loaded(_column: int, term: tirx.Expr) -> tirx.Expr:
            return emit.vector(packed, (block * index(product.terms.length) + term) * index(self.block), self.block)

        total = emit.product_tile(1, 1, product.terms.length, isa, broadcast, loaded)[0]
        kept = {number: emit.registers(1, self.block) for number in range(len(kernel.after))}
        with emit.loop(self.block, "vectorized") as lane:
            place = [(product.rows, row), (product.columns, first + lane)]
            Element(kernel, arguments, total[lane], kept, place, lane).store()
        return [(kernel.sum_, total), *((s.buffer, kept[n]) for n, s in enumerate(kernel.after))]

    def _weigh(
        self,
        arguments: Arguments,
        gates: list[tuple[tirx.Buffer, tirx.Buffer]],
        where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
        part: tirx.Expr,
    ) -> None:
        """The map for one channel of a block and a part of the pixels."""
        gated = self.gated
        row, first, number = where

        def gate(load: TensorLoad) -> tirx.Expr:
            value = next((v for buffer, v in gates if load.source.same_as(buffer)), None)
            return load if value is None else value[number]

        map_ = gated.map_
        stages = [replace(s, value=substituted(map_.inlined(s.value), [], gate)) for s in map_.after]
        map_ = replace(map_, before=(), after=tuple(stages))
        fixed: Place = [(map_.axis([gated.channel]), first + number)]
        if gated.image is not None:
            fixed = [*fixed, (map_.axis([gated.image]), row)]
        rest = map_.axis(gated.rest)

        def vector(place: Place, begin: tirx.Expr, lanes: int) -> None:
            kept = {n: emit.registers(1, lanes) for n, _ in kept_stages(map_)}
            with emit.loop(lanes, "vectorized") as lane:
                Element(map_, arguments, None, kept, [*place, (gated.pixels, begin + lane)], lane).store()

        with emit.loop(rest.length) as outer:
            place = [*fixed, *map_.place(emit.split(rest, outer))]
            self._pixels(part, partial(vector, place))

    def _pixels(self, part: tirx.Expr, move: Move) -> None:
        """Call `move` for the vectors of a part of the pixels."""
        length, size = self.gated.pixels.length, self.size
        if not is_number(length):
            share_vectors(length, self.lanes, emit.Part(part, self.parts), move)
            return
        start = part * index(size)
        if exceeds(length, size):
            start = tirx.min(start, index(length - size))
        in_vectors(size, self.lanes, lambda place, lanes: move(start + place, lanes))
