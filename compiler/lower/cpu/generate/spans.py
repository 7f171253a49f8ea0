"""Numbers in a row as vectors, also if their count is known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index, overlapping
from heterocc.compiler.lower.cpu.generate.read import Combine
from heterocc.compiler.lower.cpu.sizes import Size, as_number, exceeds, is_number
from heterocc.compiler.lower.kernels.expressions import dtype_of

Move = Callable[[tirx.Expr, int], None]
"""A function that is called with the start of a vector and its number of lanes."""


def widths(lanes: int, *, few: bool = False) -> tuple[int, ...]:
    """Numbers of lanes for rows of any length: `lanes` and its halves down to 4, or only 4 of these for `few`."""
    sizes = [lanes]
    while sizes[-1] > 4 and not few:
        sizes.append(sizes[-1] // 2)
    return (*sizes, 4) if few and lanes > 4 else tuple(sizes)


def in_vectors(count: Size, lanes: int, move: Move, *, few: bool = False) -> None:
    """Call `move` for vectors that cover `count` numbers; the last one overlaps the one before.

    A count that is known only at run time may be less than `lanes`: narrower vectors cover it then, or single numbers.
    `few` widths make for shorter code.
    """
    if is_number(count):
        _covered(count, min(lanes, count), move)
    else:
        _narrowing(count, widths(lanes, few=few), move)


def share_vectors(count: Size, lanes: int, part: emit.Part, move: Move) -> None:
    """Call `move` for one of several parts of `count` numbers, no more than there are vectors.

    Less than `lanes` is one narrower vector, or of a count known only at run time several, or single numbers.
    """
    lanes = min(lanes, count) if is_number(count) else lanes
    vectors = -(-count // lanes)
    if is_number(count):
        size = min(count, as_number(-(-vectors // part.parts)) * lanes)
        start = overlapping(part.number * index(size), count, size)
        _covered(size, lanes, lambda place, n: move(start + place, n))
        return

    def whole() -> None:
        with emit.share_loop(*part, vectors) as number:
            move(emit.bound(tirx.min(number * index(lanes), index(count - lanes))), lanes)

    narrow = widths(lanes, few=True)[1:]
    emit.either(emit.bound(index(count)) >= index(lanes), whole, lambda: _narrowing(count, narrow, move))


def _covered(count: Size, width: int, move: Move) -> None:
    """Vectors of `width`, which `count` is not less than."""
    with emit.loop(count // width) as number:
        move(number * index(width), width)
    if exceeds(count, width):
        move(index(count - width), width)


def _narrowing(count: Size, lanes: Sequence[int], move: Move) -> None:
    if not lanes or lanes[0] == 1:
        with emit.loop(count) as number:
            move(number, 1)
        return
    # TVM would see that a factor of the count is 0 where a row is shorter than its multiple, and divide by it.
    emit.either(
        emit.bound(index(count)) >= index(lanes[0]),
        lambda: _covered(count, lanes[0], move),
        lambda: _narrowing(count, lanes[1:], move),
    )


def folded(held: tirx.Buffer, lanes: int, combine: Combine, chains: int = 1) -> tirx.Buffer:
    """One number of `chains` vectors that lie in a register one after the other: of the vectors, then of halves."""
    for chain in range(1, chains):
        both = combine(emit.vector(held, index(0), lanes), emit.vector(held, index(chain * lanes), lanes))
        emit.put(held, both, index(0), lanes)
    while lanes > 1:
        lanes //= 2
        halves = (emit.vector(held, index(place), lanes) for place in (0, lanes))
        held = emit.register(combine(*halves), lanes, dtype_of(held))
    return held
