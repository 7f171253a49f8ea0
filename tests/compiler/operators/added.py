"""Operators of ONNX Runtime, each in one record of a program: CDist, ExpandDims, CropAndResize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from heterocc.compiler.operators.record import COORDINATES, FIRST, MICROSOFT, RANGE, Dims, Operator, nothing
from heterocc.compiler.symbolic.contents import same_contents
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import number


def _shapes(given: Given) -> list[Shape] | None:
    one, other = given.shape(0), given.shape(1)
    return None if one is None or other is None else [(one[0], other[0])]


def _needs(needs: Needs) -> None:
    """Points of as many coordinates."""
    needs.equal(1, 1, needs.size(0, 1))


def _flops(_node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
    return 3.0 * output[0] * output[1] * inputs[0][1]


def _convert(ctx: Any, one: Any, other: Any) -> Any:
    """The distances of all pairs of points."""
    from tvm import te, tirx

    from heterocc.compiler.lower.converters.values import dtype_of
    from heterocc.compiler.lower.sized import emit_sized

    rooted = ctx.text("metric", "sqeuclidean") == "euclidean"

    def compute(given: list[Any], _sizes: list[Any], shape: list[Any]) -> Any:
        a, b = given
        k = te.reduce_axis((0, a.shape[1]), name="k")
        squares = te.compute(shape, lambda i, j: te.sum((a[i, k] - b[j, k]) * (a[i, k] - b[j, k]), axis=k))
        return te.compute(shape, lambda i, j: tirx.sqrt(squares[i, j])) if rooted else squares

    return emit_sized(ctx.bb, compute, [one, other], [], ctx.result(), dtype_of(one), "distances")


CDIST = Operator(
    "CDist",
    MICROSOFT,
    shapes=_shapes,
    needs=_needs,
    intervals={0: (-2.0, 2.0), 1: (-2.0, 2.0)},
    flops=_flops,
    float32_results=RANGE,
    convert=_convert,
)


def _expanded_shapes(given: Given) -> list[Shape] | None:
    shape, axis = given.shape(), given.numbers(1)
    if shape is None or axis is None:
        return None
    place = axis[0] % (len(shape) + 1)
    return [(*shape[:place], number(1), *shape[place:])]


def _expand(ctx: Any, data: Any, axis: Any) -> Any:
    from tvm import relax

    return relax.op.expand_dims(data, int(ctx.known(axis)))


EXPAND_DIMS = Operator(
    "ExpandDims",
    MICROSOFT,
    shapes=_expanded_shapes,
    contents=same_contents,
    needs=nothing,
    keeps_order=True,
    moves=FIRST,
    settings=True,
    convert=_expand,
)


def _cropped_shapes(given: Given) -> list[Shape] | None:
    data, boxes, size = given.shape(), given.shape(1), given.elements(3)
    if data is None or boxes is None:
        return None
    return [(boxes[0], data[1], *([None, None] if size is None else size))]


def _crop_needs(needs: Needs) -> None:
    """A number of the batch for each box."""
    needs.equal(2, 0, needs.size(1, 0))


def _crop(ctx: Any, data: Any, boxes: Any, numbers: Any, _size: Any) -> Any:
    """Boxes of images, each resized to the same size, which may be known only in a run."""
    from tvm import te, tirx

    from heterocc.compiler.lower.converters.checked_places import checked_places
    from heterocc.compiler.lower.converters.computed.numbers import within
    from heterocc.compiler.lower.converters.values import dims_of, dtype_of
    from heterocc.compiler.lower.sized import emit_sized

    if ctx.text("mode", "bilinear") != "bilinear":
        raise NotImplementedError("its mode is not bilinear")
    outside = tirx.const(float(ctx.attrs.get("extrapolation_value", 0.0)), "float32")
    numbers = checked_places(ctx, numbers, [dims_of(data)[0]], from_end=False)

    def compute(given: list[Any], _sizes: list[Any], shape: list[Any]) -> Any:
        x, box, image = given

        def place(axis: int, n: Any, i: Any) -> Any:
            last, count = (x.shape[2 + axis] - 1).astype("float32"), shape[2 + axis]
            low, high = box[n, axis] * last, box[n, axis + 2] * last
            step = (high - low) / (tirx.max(count, 2) - 1).astype("float32")
            return tirx.Select(count > 1, low + step * i.astype("float32"), (low + high) / 2)

        def at(n: Any, c: Any, h: Any, w: Any) -> Any:
            rows, columns = x.shape[2:]
            y, z = place(0, n, h), place(1, n, w)
            top, left = tirx.floor(y), tirx.floor(z)

            def pixel(row: Any, column: Any) -> Any:
                indices = within(row.astype("int64"), rows), within(column.astype("int64"), columns)
                return x[(within(image[n].astype("int64"), x.shape[0]), c, *indices)]

            def line(row: Any) -> Any:
                first = pixel(row, left)
                return first + (pixel(row, tirx.ceil(z)) - first) * (z - left)

            found = line(top) + (line(tirx.ceil(y)) - line(top)) * (y - top)
            inside = tirx.all(y >= 0, y <= (rows - 1).astype("float32"), z >= 0, z <= (columns - 1).astype("float32"))
            return tirx.Select(inside, found, outside)

        return te.compute(shape, at)

    return emit_sized(ctx.bb, compute, [data, boxes, numbers], [], ctx.result(), dtype_of(data), "crops")


CROP_AND_RESIZE = Operator(
    "CropAndResize",
    MICROSOFT,
    shapes=_cropped_shapes,
    sized=True,
    needs=_crop_needs,
    intervals={1: (0.0, 1.0)},
    indices=2,
    vectors={3: lambda _node, count, _known: (3, 2)[:count]},
    flops=12.0,
    float32_inputs=COORDINATES,
    convert=_crop,
)

ADDED = (CDIST, EXPAND_DIMS, CROP_AND_RESIZE)
