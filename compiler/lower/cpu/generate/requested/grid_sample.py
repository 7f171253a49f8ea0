"""Samples of images at places that are data, in vectors of places.

The four pixels around each place and their weights are computed once for all channels. Pixels outside the image are
zeros, the nearest pixel inside, or the image mirrored at its edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.request import Request

ABREAST = 4
"""Channels that are sampled together, because they share the pixels' places."""

TILE = 2048
"""Places whose pixels and weights a task keeps in the cache."""

FEWEST = 4
"""Tasks among which the channels of a small image are divided: each computes the pixels' places again."""

PIXEL = 8
"""The work of a sample, in multiply-adds, for each pixel that it reads."""

FAR = float(1 << 30)
"""Coordinates beyond this are set to it, so that they are in the range of int32."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """For each place of a tile and each pixel around it: its index in the image, weight, and -1 if it is inside, or 0.

    `weights` is empty if samples are the nearest pixel, `flags` if no pixel can be outside the image.
    """

    pixels: Sequence[tirx.Buffer]
    weights: Sequence[tirx.Buffer]
    flags: Sequence[tirx.Buffer]


def write_grid_sample(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, grid, result)` for float32 images [batch, channels, height, width]: linear or nearest samples."""
    _, grid, _ = arguments
    batch, channels, *_ = request.shapes[0]
    places = request.shapes[2][2] * request.shapes[2][3]
    lanes = request.lanes(places)
    vectors = -(-places // lanes)
    tiles = -(-vectors * lanes // TILE)
    groups = -(-channels // ABREAST)
    parts = min(groups, -(-FEWEST // (batch * tiles)))
    corners = 4 if request.text("mode") == "linear" else 1
    size = (-(-vectors // tiles) + 1) * lanes
    outside = request.text("padding") == "zeros"
    with emit.shared_loop(batch * tiles * parts, batch * channels * places * corners * PIXEL) as task:
        number, tile, part = emit.unpacked(task, (batch, tiles, parts))
        image = build.bind(number)
        first, last = (build.bind(value) for value in emit.share(tile, tiles, vectors))
        tables = _Tables(
            [emit.scratch(size, "int32") for _ in range(corners)],
            [emit.scratch(size) for _ in range(corners if corners > 1 else 0)],
            [emit.scratch(size, "int32") for _ in range(corners if outside else 0)],
        )

        def vector_at(vector: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
            """The first place of a vector, and where its pixels are in the tables."""
            here = tirx.min(vector * index(lanes), index(places - lanes))
            return build.bind(here), build.bind((vector - first) * index(lanes))

        with build.serial(first, last) as vector:
            place, at = vector_at(vector)
            start = (image * index(places) + place) * index(2)
            x, y = (_strided(grid, start + index(n), lanes) for n in range(2))
            _write_pixels(request, tables, (x, y), at, lanes)
        from_group, to_group = emit.share(part, parts, groups)
        with build.serial(from_group, to_group) as group:
            channel = build.bind(tirx.min(group * index(ABREAST), index(max(0, channels - ABREAST))))
            plane = build.bind(image * index(channels) + channel)
            with build.serial(first, last) as vector:
                place, at = vector_at(vector)
                _write_samples(request, arguments, tables, (plane, place, at), lanes)


def _strided(buffer: tirx.Buffer, start: tirx.Expr, lanes: int) -> tirx.Expr:
    """Every other element."""
    return buffer[build.ramp(start, index(2), lanes) if lanes > 1 else start]


def _write_pixels(
    request: Request, tables: _Tables, given: tuple[tirx.Expr, tirx.Expr], at: tirx.Expr, lanes: int
) -> None:
    """The pixels around the places with these coordinates, which are -1 and 1 at the edges of the image."""
    linear = request.text("mode") == "linear"
    aligned = bool(request.number("aligned"))
    beside = []
    for coordinate, size in zip(given, request.shapes[0][:1:-1], strict=True):

        def number(value: float) -> tirx.Expr:
            return emit.broadcast(tirx.const(value, "float32"), lanes)

        if aligned:
            exact = (coordinate + number(1)) * number((size - 1) / 2)
        else:
            exact = ((coordinate + number(1)) * number(size) - number(1)) * number(0.5)
        # NaN becomes the lower limit: a comparison with it is false.
        exact = _kept(tirx.min(tirx.max(exact, number(-FAR)), number(FAR)), lanes)
        whole = _kept(tirx.floor(exact) if linear else tirx.nearbyint(exact), lanes)
        right = _kept(exact - whole, lanes)
        low = _kept(tirx.Cast(_wide("int32", lanes), whole), lanes, "int32")
        one = emit.broadcast(tirx.const(1, "int32"), lanes)
        sides = [(low, number(1) - right), (low + one, right)] if linear else [(low, number(1))]
        beside.append([(*_inside(request, place, size, lanes), weight) for place, weight in sides])
    width = emit.broadcast(tirx.const(request.shapes[0][3], "int32"), lanes)
    corners = [(x, y) for y in beside[1] for x in beside[0]]
    for corner, ((x, x_inside, x_weight), (y, y_inside, y_weight)) in enumerate(corners):
        emit.put(tables.pixels[corner], y * width + x, at, lanes)
        if tables.weights:
            emit.put(tables.weights[corner], x_weight * y_weight, at, lanes)
        if tables.flags:
            emit.put(tables.flags[corner], x_inside & y_inside, at, lanes)


def _inside(request: Request, place: tirx.Expr, size: int, lanes: int) -> tuple[tirx.Expr, tirx.Expr]:
    """The pixel inside the image that stands for the one at an index, and -1 if that is itself inside, else 0."""

    def number(value: int) -> tirx.Expr:
        return emit.broadcast(tirx.const(value, "int32"), lanes)

    nearest = tirx.min(tirx.max(place, number(0)), number(size - 1))
    if request.text("padding") != "reflection":
        return nearest, tirx.Select(nearest.equal(place), number(-1), number(0))
    # A row and its mirror image repeat; without the row's ends if these are the edges of the image.
    aligned = bool(request.number("aligned"))
    period = max(1, 2 * (size - 1) if aligned else 2 * size)
    reflected = _kept(tirx.floormod(place, number(period)), lanes, "int32")
    return tirx.min(reflected, number(period - (0 if aligned else 1)) - reflected), number(-1)


def _write_samples(
    request: Request,
    arguments: Sequence[tirx.Buffer],
    tables: _Tables,
    where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
    lanes: int,
) -> None:
    """A vector of samples of each channel of a group, from the image's plane of the first one."""
    (data, _, result), (plane, place, at) = arguments, where
    _, channels, height, width = request.shapes[0]
    places = request.shapes[2][2] * request.shapes[2][3]
    abreast = min(ABREAST, channels)
    sums = [emit.registers(1, lanes) for _ in range(abreast)]
    for corner, pixels in enumerate(tables.pixels):
        read = [emit.registers(1, lanes) for _ in range(abreast)]
        for lane in range(lanes):
            pixel = build.bind(tirx.Cast("int64", pixels[at + index(lane)]))
            for number, register in enumerate(read):
                start = (plane + index(number)) * index(height * width)
                build.buffer_store(register, data[start + pixel], [index(lane)])
        for register, total in zip(read, sums, strict=True):
            value = emit.vector(register, index(0), lanes)
            if tables.flags:
                bits = tirx.reinterpret(_wide("int32", lanes), value) & emit.vector(tables.flags[corner], at, lanes)
                value = tirx.reinterpret(_wide("float32", lanes), bits)
            if tables.weights:
                value = value * emit.vector(tables.weights[corner], at, lanes)
            before = [emit.vector(total, index(0), lanes)] if corner else []
            emit.put(total, sum(before, start=value), index(0), lanes)
    for number, total in enumerate(sums):
        to = (plane + index(number)) * index(places) + place
        emit.put(result, emit.vector(total, index(0), lanes), to, lanes)


def _kept(value: tirx.Expr, lanes: int, dtype: str = "float32") -> tirx.Expr:
    """A vector in a register, because expressions are written out at every use."""
    register = emit.registers(1, lanes, dtype)
    emit.put(register, value, index(0), lanes)
    return emit.vector(register, index(0), lanes)


def _wide(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"
