"""Requirements of quantised operators: scales and zero points for a tensor, an axis or blocks."""

from __future__ import annotations

from heterocc.compiler.importer.symbols.requirements.elementwise import product
from heterocc.compiler.importer.symbols.requirements.windows import convolution
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number


def along(needs: Needs, places: tuple[int, ...], size: Size | None) -> None:
    """Scales and zero points of one number, or of one for each element of an axis."""
    for place in places:
        if len(needs.shape(place)) == 1:
            needs.broadcast(place, 0, size)
            # An axis of one element has one of them, which broadcasting does not say.
            needs.relate(
                size, "multiple", needs.size(place, 0), f"the axis that has the numbers of {needs.name(place)}"
            )


def linear(needs: Needs) -> None:
    """QuantizeLinear and DequantizeLinear."""
    data, scale = needs.shape(0), needs.shape(1)
    axis, block = needs.given.attribute("axis", 1), needs.given.attribute("block_size", 0)
    if block and len(scale) == len(data):
        for place, size in enumerate(data):
            if place == axis % len(data):
                size = None if size is None else quotient(size + number(block - 1), number(block))
            needs.equal(1, place, size)
    elif -len(data) <= axis < len(data):
        along(needs, (1,), data[axis])
    needs.shaped(2, scale)


def convolved(needs: Needs) -> None:
    """QLinearConv."""
    convolution(needs, weights=3, bias=8)
    needs.single(1, 2, 6, 7)
    along(needs, (4, 5), needs.size(3, 0))


def convolved_integers(needs: Needs) -> None:
    """ConvInteger, whose kernels have taps: ONNX Runtime returns memory that it has not written for others."""
    convolution(needs, bias=None)
    for axis in range(2, len(needs.shape(1))):
        needs.at_least(1, axis, 1)
    needs.single(2)
    along(needs, (3,), needs.size(1, 0))


def multiplied(needs: Needs) -> None:
    """QLinearMatMul."""
    product(needs, 0, 3)
    along(needs, (1, 2), needs.size(0, -2))
    along(needs, (4, 5), needs.size(3, -1))
    along(needs, (6, 7), needs.size(0, -2))


def multiplied_integers(needs: Needs) -> None:
    """MatMulInteger."""
    product(needs)
    along(needs, (2,), needs.size(0, -2))
    along(needs, (3,), needs.size(1, -1))


RULES = {
    "QuantizeLinear": linear,
    "DequantizeLinear": linear,
    "QLinearConv": convolved,
    "ConvInteger": convolved_integers,
    "QLinearMatMul": multiplied,
    "MatMulInteger": multiplied_integers,
}
