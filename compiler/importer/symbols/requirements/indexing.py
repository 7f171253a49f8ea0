"""Requirements of operators that read or write elements at indices."""

from __future__ import annotations

from heterocc.compiler.importer.symbols.operators.windows import least_unpooled
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number, product_of, smaller


def some(needs: Needs, place: int) -> Size | None:
    """1 if an input has elements, else 0."""
    shape = needs.shape(place)
    return None if None in shape else smaller(product_of(d for d in shape if d is not None), number(1))


def gather(needs: Needs) -> None:
    """Gather: the axis has elements if any is read."""
    needs.at_least(0, needs.given.attribute("axis", 0), some(needs, 1))


def gather_elements(needs: Needs) -> None:
    """GatherElements: indices are within the data along the other axes."""
    rank = len(needs.shape(0))
    for axis in range(rank if len(needs.shape(1)) == rank else 0):
        if axis == needs.given.attribute("axis", 0) % rank:
            needs.at_least(0, axis, some(needs, 1))
        else:
            needs.at_least(0, axis, needs.size(1, axis))


def gather_nd(needs: Needs) -> None:
    """GatherND: the batches are equal."""
    batch, indices = needs.given.attribute("batch_dims", 0), needs.shape(1)
    for axis in range(batch):
        needs.equal(1, axis, needs.size(0, axis))
    depth = indices[-1].number if indices and indices[-1] is not None else None
    for axis in range(batch, batch + (depth or 0)):
        needs.at_least(0, axis, some(needs, 1))


def scatter_elements(needs: Needs) -> None:
    """ScatterElements: an update for each index, and indices within the data along the other axes."""
    indices = needs.shape(1)
    needs.shaped(2, indices)
    rank = len(needs.shape(0))
    for axis in range(rank if len(indices) == rank else 0):
        if axis == needs.given.attribute("axis", 0) % rank:
            needs.at_least(0, axis, some(needs, 1))
        else:
            needs.at_least(0, axis, indices[axis])


def scatter_nd(needs: Needs) -> None:
    """ScatterND: an update is a slice of the data for each index tuple."""
    data, indices = needs.shape(0), needs.shape(1)
    depth = indices[-1].number if indices and indices[-1] is not None else None
    if depth is not None:
        needs.shaped(2, [*indices[:-1], *data[depth:]])
        for axis in range(depth):
            needs.at_least(0, axis, some(needs, 1))


def tensor_scatter(needs: Needs) -> None:
    """TensorScatter: the update is as the cache but for the axis, along which it is not longer."""
    past = needs.shape(0)
    axis = needs.given.attribute("axis", -2)
    for place, size in enumerate(past):
        if place != axis % len(past):
            needs.equal(1, place, size)
    needs.at_least(0, axis, needs.size(1, axis))
    needs.equal(2, 0, needs.size(0, 0))


def reverse_sequence(needs: Needs) -> None:
    """ReverseSequence: a length for each item of the batch."""
    needs.equal(1, 0, needs.size(0, needs.given.attribute("batch_axis", 1)))


def max_unpool(needs: Needs) -> None:
    """MaxUnpool: an index for each element, and a result of the same batch and channels, with room for the windows."""
    needs.shaped(1, needs.shape(0))
    least = least_unpooled(needs.given)
    if needs.given.has(2) and least is not None:
        for axis, (size, needed) in enumerate(zip(needs.given.elements(2) or (), least, strict=False)):
            if size is not None and needed is not None:
                needs.relate(size, "equal" if axis < 2 else "at_least", needed, f"dimension {axis} of its result")


def drawn(needs: Needs) -> None:
    """Multinomial: there is a class to draw."""
    needs.at_least(0, 1, 1)


def suppression(needs: Needs) -> None:
    """NonMaxSuppression: a score for each box, which has four numbers."""
    needs.equal(1, 0, needs.size(0, 0))
    needs.equal(1, 2, needs.size(0, 1))
    needs.equal(0, 2, 4)
    needs.single(2, 3, 4)


def extreme(needs: Needs) -> None:
    """ArgMax and ArgMin: there is an element."""
    needs.at_least(0, needs.given.attribute("axis", 0), 1)


def roi_align(needs: Needs) -> None:
    """RoiAlign: a number of the batch for each region, which has four numbers."""
    needs.equal(2, 0, needs.size(1, 0))
    needs.equal(1, 1, 4)
    for axis in range(4):
        needs.at_least(0, axis, some(needs, 1) if axis != 1 else 0)


def max_roi_pool(needs: Needs) -> None:
    """MaxRoiPool: a region has the number of its image and four others."""
    needs.equal(1, 1, 5)


def grid_sample(needs: Needs) -> None:
    """GridSample: a grid for each item of the batch, with a number for each spatial axis."""
    data = needs.shape(0)
    needs.equal(1, 0, needs.size(0, 0))
    needs.equal(1, -1, len(data) - 2)
    for axis in range(2, len(data)):
        needs.at_least(0, axis, some(needs, 1))


def top_k(needs: Needs) -> None:
    """TopK: there are as many elements as are asked for."""
    given = needs.given
    wanted = given.sizes(1) if given.opset >= 10 else [number(given.attribute("k"))]
    needs.at_least(0, given.attribute("axis", -1), wanted[0] if wanted else None)
    needs.single(1)


RULES = {
    "ArgMax": extreme,
    "ArgMin": extreme,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "TensorScatter": tensor_scatter,
    "ReverseSequence": reverse_sequence,
    "MaxUnpool": max_unpool,
    "Multinomial": drawn,
    "NonMaxSuppression": suppression,
    "RoiAlign": roi_align,
    "MaxRoiPool": max_roi_pool,
    "GridSample": grid_sample,
    "TopK": top_k,
}
