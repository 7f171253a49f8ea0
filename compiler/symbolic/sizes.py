"""Sizes as integer expressions of named dimensions, in a normal form: equal texts mean equal sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from heterocc.artifacts.manifest import Range

Kind = Literal["//", "min", "max"]


@dataclass(frozen=True)
class Compound:
    """A quotient rounded down, or the smaller or larger of two sizes: what a sum of products cannot express."""

    kind: Kind
    left: Size
    right: Size

    @cached_property
    def depth(self) -> int:
        """How many quotients, minima and maxima are inside each other."""
        return 1 + max(self.left.depth, self.right.depth)

    @cached_property
    def text(self) -> str:
        """The expression in Python's notation, which also orders the parts of a size."""
        if self.kind == "//":
            return f"({self.left.text})//{self.right.factor_text}"
        return f"{self.kind}({self.left.text}, {self.right.text})"

    def ends(self, ranges: Mapping[str, Range]) -> tuple[int, int]:
        """As of a size."""
        left, right = self.left.ends(ranges), self.right.ends(ranges)
        if self.kind == "//":
            divisors = [d for d in right if d > 0] or [1]
            found = [n // d for n in left for d in divisors]
            return min(found), max(found)
        rule = min if self.kind == "min" else max
        return rule(left[0], right[0]), rule(left[1], right[1])

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value for the sizes of the named dimensions."""
        left, right = self.left.at(sizes), self.right.at(sizes)
        return left // right if self.kind == "//" else min(left, right) if self.kind == "min" else max(left, right)


class Filled(str):
    """The name of a dimension that is at least 1 in every run. It equals the plain name."""

    __slots__ = ()


Atom = str | Compound
Product = tuple[Atom, ...]


def order_key(atom: Atom) -> str:
    """The text by which atoms of a product are ordered."""
    return atom if isinstance(atom, str) else atom.text


@dataclass(frozen=True)
class Size:
    """A sum of integer multiples of products of names and compounds, none of them 0, in the order of their texts."""

    terms: tuple[tuple[Product, int], ...]

    def __repr__(self) -> str:
        return f"Size({self.text})"

    @cached_property
    def text(self) -> str:
        """The expression in Python's notation; the name alone for a named dimension."""
        if not self.terms:
            return "0"
        parts = []
        for product, count in self.terms:
            factors = "*".join(order_key(a) for a in product)
            shown = str(abs(count)) if not factors else factors if abs(count) == 1 else f"{abs(count)}*{factors}"
            parts.append((" - " if count < 0 else " + ") + shown)
        text = "".join(parts)
        return text[3:] if text.startswith(" + ") else f"-{text[3:]}"

    @cached_property
    def depth(self) -> int:
        """How many quotients, minima and maxima are inside each other, 0 of sums of products of names."""
        return max((a.depth for product, _ in self.terms for a in product if isinstance(a, Compound)), default=0)

    @property
    def factor_text(self) -> str:
        """The text as a factor of a product."""
        return self.text if self.number is not None or len(self.terms) == 1 else f"({self.text})"

    @property
    def number(self) -> int | None:
        """The value if it is the same for all sizes, else None."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    @property
    def name(self) -> str | None:
        """The name if the size is that of one named dimension, else None."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1:
            atom = self.terms[0][0][0]
            return atom if isinstance(atom, str) else None
        return None

    @cached_property
    def names(self) -> frozenset[str]:
        """The named dimensions that it depends on."""
        found: set[str] = set()
        for product, _ in self.terms:
            for atom in product:
                found |= {atom} if isinstance(atom, str) else atom.left.names | atom.right.names
        return frozenset(found)

    @cached_property
    def least(self) -> int | None:
        """A lower bound for names of 0 or more, and of 1 or more for those that are Filled; None if none is known."""
        found = self._without_quotients()._bound()
        if found is not None:
            return found
        lower = self._with_fractions()
        found = None if lower is self else lower.least
        return self._multiplied() if found is None else found

    def _multiplied(self) -> int | None:
        """A lower bound from that of a multiple in which a quotient is a fraction: 4n - 3n of n - 3n // 4, say."""
        for sign in (-1, 1):
            for product, count in self.terms:
                atom = product[0] if len(product) == 1 else None
                divisor = atom.right.number if isinstance(atom, Compound) and atom.kind == "//" else None
                if count * sign > 0 and isinstance(atom, Compound) and divisor and divisor > 0:
                    rest = self - Size(((product, count),))
                    largest = atom.left if sign < 0 else atom.left - number(divisor - 1)
                    found = (rest * number(divisor) + largest * number(count)).least
                    return None if found is None else -(-found // divisor)
        return None

    def _bound(self) -> int | None:
        """The sum of the lower bounds of the terms; None if one has none."""
        for product, count in self.terms:
            atom = product[0] if len(product) == 1 else None
            if count < 0 and isinstance(atom, Compound) and atom.kind != "//":
                rest = self - Size(((product, count),))
                found = [(rest + side * number(count)).least for side in (atom.left, atom.right)]
                known = [n for n in found if n is not None]
                if atom.kind == "min":
                    return max(known, default=None)
                return min(known) if len(known) == 2 else None
        total = 0
        for product, count in self.terms:
            if not product:
                total += count
            elif count < 0 or any(_least(a) is None for a in product):
                return None
            else:
                total += count * math.prod(_least(a) or 0 for a in product)
        return total

    def _with_fractions(self) -> Size:
        """A size that is not larger: x // d is at least (x - d + 1) / d, if that times the count is whole."""
        for product, count in self.terms:
            atom = product[0] if len(product) == 1 else None
            divisor = atom.right.number if isinstance(atom, Compound) and atom.kind == "//" else None
            if count > 0 and isinstance(atom, Compound) and divisor and divisor > 0 and count % divisor == 0:
                rest = self - Size(((product, count),))
                return rest + (atom.left - number(divisor - 1)) * number(count // divisor)
        return self

    def _without_quotients(self) -> Size:
        """A size that is not larger: a quotient that is subtracted becomes the fraction, if that is whole."""
        total = Size(())
        for product, count in self.terms:
            atom = product[0] if len(product) == 1 else None
            divisor = atom.right.number if isinstance(atom, Compound) and atom.kind == "//" else None
            if count < 0 and isinstance(atom, Compound) and divisor and divisor > 0 and count % divisor == 0:
                total = total + atom.left * number(count // divisor)
            else:
                total = total + Size(((product, count),))
        return total

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value for the sizes of the named dimensions."""
        return sum(
            count * math.prod(sizes[a] if isinstance(a, str) else a.at(sizes) for a in product)
            for product, count in self.terms
        )

    def ends(self, ranges: Mapping[str, Range]) -> tuple[int, int]:
        """Bounds of the value for ranges of the named dimensions, each of which has a largest size.

        They are two numbers and not a Range, because a part of an expression may be negative.
        """
        low = high = 0
        for product, count in self.terms:
            ends = (count, count)
            for atom in product:
                other = _ends(ranges[atom]) if isinstance(atom, str) else atom.ends(ranges)
                found = [a * b for a in ends for b in other]
                ends = min(found), max(found)
            low, high = low + ends[0], high + ends[1]
        return low, high

    def __add__(self, other: Size) -> Size:
        return sum_of_terms((*self.terms, *other.terms))

    def __neg__(self) -> Size:
        return Size(tuple((product, -count) for product, count in self.terms))

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __mul__(self, other: Size) -> Size:
        return sum_of_terms(
            (tuple(sorted((*p, *q), key=order_key)), count * times)
            for p, count in self.terms
            for q, times in other.terms
        )


def _ends(range_: Range) -> tuple[int, int]:
    assert range_.max is not None
    return range_.min, range_.max


def _least(atom: Atom) -> int | None:
    if isinstance(atom, str):
        return int(isinstance(atom, Filled))
    left, right = atom.left.least, atom.right.least
    if atom.kind == "//":
        positive = atom.right.number
        return left // positive if left is not None and positive is not None and positive > 0 else None
    if atom.kind == "max":
        return max((n for n in (left, right) if n is not None), default=None)
    return None if left is None or right is None else min(left, right)


def sum_of_terms(terms: Iterable[tuple[Product, int]]) -> Size:
    """The sum of products, each a number of times, in normal form."""
    total: dict[Product, int] = {}
    for product, count in terms:
        total[product] = total.get(product, 0) + count
    left = [(product, count) for product, count in total.items() if count]
    joined = _joined(left)
    return joined or Size(tuple(sorted(left, key=lambda term: (not term[0], [order_key(a) for a in term[0]]))))


def _joined(terms: list[tuple[Product, int]]) -> Size | None:
    """The sum with max(x, y) + min(x, y) as x + y; None if there is no such pair.

    The two parts of a tensor that is cut and joined again, to shift it, have such sizes. A number may be added to both
    sides of one of the two.
    """
    parts: dict[Kind, list[tuple[Product, Compound, int]]] = {"max": [], "min": [], "//": []}
    for product, count in terms:
        for place, atom in enumerate(product):
            if isinstance(atom, Compound):
                parts[atom.kind].append((product[:place] + product[place + 1 :], atom, count))
    for rest, high, count in parts["max"]:
        for other, low, times in parts["min"]:
            more = _difference(low, high) if other == rest and count * times > 0 else None
            if more is None:
                continue
            both = min(count, times, key=abs)
            taken = [(tuple(sorted((*rest, atom), key=order_key)), -both) for atom in (high, low)]
            return sum_of_terms((*terms, *taken)) + Size(((rest, both),)) * (high.left + high.right + more)
    return None


def _difference(low: Compound, high: Compound) -> Size | None:
    """What the sides of the first exceed those of the second by; None if it is not the same."""
    for one, other in ((low.left, low.right), (low.right, low.left)):
        if one - high.left == other - high.right:
            return one - high.left
    return None


@lru_cache(4096)
def number(value: int) -> Size:
    """A size that is the same for all sizes of the named dimensions."""
    return Size((((), value),) if value else ())


def named(name: str) -> Size:
    """The size of a named dimension."""
    return Size((((name,), 1),))


def product_of(sizes: Iterable[Size]) -> Size:
    """The product of sizes, 1 of none."""
    total = number(1)
    for size in sizes:
        total = total * size
    return total


def smaller(left: Size, right: Size) -> Size:
    """The smaller of two sizes."""
    return _chosen("min", left, right)


def larger(left: Size, right: Size) -> Size:
    """The larger of two sizes."""
    return _chosen("max", left, right)


def _chosen(kind: Kind, left: Size, right: Size) -> Size:
    for one, other in ((left, right), (right, left)):
        gap = (one - other).least
        if gap is not None and gap >= 0:
            return one if kind == "max" else other
    common = math.gcd(*(count for _, count in (*left.terms, *right.terms)))
    if common > 1:
        left, right = (Size(tuple((p, c // common) for p, c in s.terms)) for s in (left, right))
    left, right = sorted((left, right), key=lambda s: s.text)
    return Size((((Compound(kind, left, right),), max(common, 1)),))
