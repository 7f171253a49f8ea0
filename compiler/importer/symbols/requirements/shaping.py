"""Requirements of operators that move, join and cut data."""

from __future__ import annotations

from itertools import pairwise

from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, larger, number, product_of, smaller


def pad(needs: Needs) -> None:
    """Pad: what is cut off is there, and so is what is repeated."""
    given, data = needs.given, needs.shape(0)
    needs.single(2)
    axes = given.numbers(3) if given.has(3) else list(range(len(data)))
    pads = given.elements(1) if given.opset >= 11 else [number(n) for n in given.attribute("pads", ())]
    if axes is None or pads is None or len(pads) != 2 * len(axes):
        return
    mode = given.attribute("mode", b"constant")
    none, one = number(0), number(1)
    for index, axis in enumerate(axes):
        size, before, after = needs.size(0, axis), pads[index], pads[index + len(axes)]
        if size is None or before is None or after is None:
            continue
        what = f"dimension {axis % len(data)} of {needs.name(0)}"
        needs.relate(size + before + after, "at_least", none, f"{what} and its padding")
        if mode == b"constant":
            continue
        left = size + smaller(before, none) + smaller(after, none)
        if left != size:
            needs.relate(left, "at_least", one, f"{what}, without what the padding cuts off,")
        for added in (larger(before, none), larger(after, none)):
            # An edge and a turn of the whole need one element, and a reflection one more than it repeats.
            repeated = smaller(added, one)
            needs.relate(left, "at_least", added + repeated if mode == b"reflect" else repeated, what)


def concat(needs: Needs) -> None:
    """Concat: all other axes are equal."""
    first = needs.shape(0)
    axis = needs.given.attribute("axis", 1)
    for number_, (one, other) in enumerate(pairwise(needs.given.shapes)):
        if one is None or other is None or len(one) != len(other) or not first:
            continue
        for place, size in enumerate(first):
            if place != axis % len(first):
                needs.equal(number_ + 1, place, size)


def split(needs: Needs) -> None:
    """Split: the parts are all of the axis, or equal parts, of which the last one may be smaller."""
    given = needs.given
    axis, size = given.attribute("axis", 0), needs.size(0, given.attribute("axis", 0))
    parts = given.numbers(1, "split" if given.opset < 13 else None)
    count = number(len(given.node.output))
    if parts is not None:
        needs.equal(0, axis, number(sum(parts)))
    elif given.has(1) or size is None:
        return
    elif given.opset < 18:
        needs.multiple(0, axis, count)
    else:
        part = quotient(size + count - number(1), count)
        needs.at_least(0, axis, None if part is None else part * (count - number(1)))


def same_count(needs: Needs) -> None:
    """Reshape and its kin: the result has as many elements."""
    first, result = needs.shape(0), needs.result
    if first and result is not None and None not in first and None not in result:
        sizes = [product_of(d for d in shape if d is not None) for shape in (first, result)]
        needs.relate(sizes[0], "equal", sizes[1], f"the number of elements of {needs.name(0)}")


def squeeze(needs: Needs) -> None:
    """Squeeze: an axis that is removed has one element."""
    given = needs.given
    for axis in given.numbers(1, "axes" if given.opset < 13 else None) or ():
        needs.equal(0, axis, 1)
    same_count(needs)


def expand(needs: Needs) -> None:
    """Expand: each size is the data's, or one of the two is 1."""
    wanted = needs.given.elements(1)
    if wanted is not None:
        needs.fits(0, wanted)


def tile(needs: Needs) -> None:
    """Tile: a number for each axis."""
    if needs.shape(0):
        needs.equal(1, 0, len(needs.shape(0)))


def depth_to_space(needs: Needs) -> None:
    """DepthToSpace: the channels are those of whole blocks."""
    needs.multiple(0, 1, needs.given.attribute("blocksize", 1) ** 2)


def space_to_depth(needs: Needs) -> None:
    """SpaceToDepth: the sides are whole blocks."""
    for axis in (2, 3):
        needs.multiple(0, axis, needs.given.attribute("blocksize", 1))


def einsum(needs: Needs) -> None:
    """Einsum: the sizes of one letter are equal, or 1."""
    left = needs.given.attribute("equation", b"").decode().replace(" ", "").split("->")[0]
    sizes: dict[str, Size] = {}
    for place, letters in enumerate(left.split(",")):
        shape = needs.shape(place)
        before, dots, after = letters.partition("...")
        axes = [*enumerate(before), *((n - len(after), c) for n, c in enumerate(after))]
        if not dots and len(letters) != len(shape):
            continue
        for axis, letter in axes:
            size = needs.size(place, axis)
            if size is None:
                continue
            known = sizes.setdefault(letter, size)
            if size != known:
                needs.broadcast(place, axis, known)
            if known.number == 1:
                sizes[letter] = size
        if dots:
            _ellipses(needs, place, len(before), len(after), sizes)


def _ellipses(needs: Needs, place: int, before: int, after: int, sizes: dict[str, Size]) -> None:
    shape = needs.shape(place)
    for step in range(1, 1 + len(shape) - before - after):
        size = shape[-after - step]
        if size is not None:
            needs.broadcast(place, -after - step, sizes.setdefault(f"...{step}", size))


def resize(needs: Needs) -> None:
    """Resize and Upsample: a factor or a size for each axis."""
    given, rank = needs.given, len(needs.shape(0))
    if given.node.op_type == "Upsample" or given.opset < 11:
        needs.equal(1, 0, rank)
        return
    count = len(given.attribute("axes") or range(rank))
    for place in (2, 3):
        known = needs.size(place, 0)
        if known is not None and known.number != 0:  # an empty one is as an absent one
            needs.equal(place, 0, count)


def square(needs: Needs) -> None:
    """Det: square matrices."""
    needs.equal(0, -1, needs.size(0, -2))


def one_hot(needs: Needs) -> None:
    """OneHot: a depth, and two values."""
    needs.single(1)
    needs.equal(2, 0, 2)


def fourier(needs: Needs) -> None:
    """DFT: real or complex numbers along the last axis."""
    size = needs.size(0, -1)
    if size is not None and size.number != 1:
        needs.broadcast(0, -1, number(2))
    needs.single(1, 2)


def running(needs: Needs) -> None:
    """CumSum, CumProd and Trilu: one number beside the data."""
    needs.single(1)


def limited(needs: Needs) -> None:
    """Clip and Dropout: two numbers beside the data."""
    needs.single(1, 2)


def numbered(needs: Needs) -> None:
    """Range: three numbers."""
    needs.single(0, 1, 2)


def loop(needs: Needs) -> None:
    """Loop and If: a number of trips and a condition."""
    needs.single(0)
    if needs.given.node.op_type == "Loop":
        needs.single(1)


def scan(needs: Needs) -> None:
    """Scan: the sequences that are read have one length."""
    count = needs.given.attribute("num_scan_inputs", 0)
    axes = needs.given.attribute("scan_input_axes") or [0] * count
    first = len(needs.given.shapes) - count
    for number_ in range(1, count):
        needs.equal(first + number_, axes[number_], needs.size(first, axes[0]))


def affine_grid(needs: Needs) -> None:
    """AffineGrid: a matrix for each item of the batch."""
    wanted = needs.given.sizes(1)
    if wanted is not None:
        needs.shaped(0, [wanted[0], number(len(wanted) - 2), number(len(wanted) - 1)])


RULES = {
    "Pad": pad,
    "Concat": concat,
    "Split": split,
    "Reshape": same_count,
    "Flatten": same_count,
    "Unsqueeze": same_count,
    "Squeeze": squeeze,
    "Expand": expand,
    "Tile": tile,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "Einsum": einsum,
    "Resize": resize,
    "Upsample": resize,
    "AffineGrid": affine_grid,
    "Det": square,
    **dict.fromkeys(("Loop", "If"), loop),
    "Scan": scan,
    **dict.fromkeys(("CumSum", "CumProd", "Trilu"), running),
    **dict.fromkeys(("Clip", "Dropout"), limited),
    "Range": numbered,
    "OneHot": one_hot,
    "DFT": fourier,
}
