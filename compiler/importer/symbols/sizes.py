"""Sizes as integer expressions of named dimensions, in a normal form: equal texts mean equal sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

_MOST_STEPS = 64
"""The most terms of a quotient of sums."""

Kind = Literal["//", "min", "max"]


@dataclass(frozen=True)
class Compound:
    """A quotient rounded down, or the smaller or larger of two sizes: what a sum of products cannot express."""

    kind: Kind
    left: Size
    right: Size

    @cached_property
    def text(self) -> str:
        """The expression in Python's notation, which also orders the parts of a size."""
        if self.kind == "//":
            return f"({self.left.text})//{self.right.factor_text}"
        return f"{self.kind}({self.left.text}, {self.right.text})"

    def within(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """Bounds of the value for ranges of the named dimensions."""
        left, right = self.left.within(ranges), self.right.within(ranges)
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


def _key(atom: Atom) -> str:
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
            factors = "*".join(_key(a) for a in product)
            shown = str(abs(count)) if not factors else factors if abs(count) == 1 else f"{abs(count)}*{factors}"
            parts.append((" - " if count < 0 else " + ") + shown)
        text = "".join(parts)
        return text[3:] if text.startswith(" + ") else f"-{text[3:]}"

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
        return None if lower is self else lower.least

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

    def within(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """Bounds of the value for ranges of the named dimensions: the least and the largest size of each."""
        low = high = 0
        for product, count in self.terms:
            ends = (count, count)
            for atom in product:
                other = ranges[atom] if isinstance(atom, str) else atom.within(ranges)
                found = [a * b for a in ends for b in other]
                ends = min(found), max(found)
            low, high = low + ends[0], high + ends[1]
        return low, high

    def __add__(self, other: Size) -> Size:
        return _sum((*self.terms, *other.terms))

    def __neg__(self) -> Size:
        return Size(tuple((product, -count) for product, count in self.terms))

    def __sub__(self, other: Size) -> Size:
        return self + -other

    def __mul__(self, other: Size) -> Size:
        return _sum(
            (tuple(sorted((*p, *q), key=_key)), count * times) for p, count in self.terms for q, times in other.terms
        )


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


def _sum(terms: Iterable[tuple[Product, int]]) -> Size:
    total: dict[Product, int] = {}
    for product, count in terms:
        total[product] = total.get(product, 0) + count
    left = [(product, count) for product, count in total.items() if count]
    joined = _joined(left)
    return joined or Size(tuple(sorted(left, key=lambda term: (not term[0], [_key(a) for a in term[0]]))))


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
            taken = [(tuple(sorted((*rest, atom), key=_key)), -both) for atom in (high, low)]
            return _sum((*terms, *taken)) + Size(((rest, both),)) * (high.left + high.right + more)
    return None


def _difference(low: Compound, high: Compound) -> Size | None:
    """What the sides of the first exceed those of the second by; None if it is not the same."""
    for one, other in ((low.left, low.right), (low.right, low.left)):
        if one - high.left == other - high.right:
            return one - high.left
    return None


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


def quotient(left: Size, right: Size) -> Size | None:
    """left // right, rounded down; None for a divisor that may be 0 or negative.

    Exact for a divisor that divides every term, whatever the sizes, and so also for names, which count as positive.
    """
    if left == right:
        return number(1)
    if len(right.terms) == 1:
        product, count = right.terms[0]
        divided = [_over(term, product, count) for term in left.terms]
        if all(d is not None for d in divided):
            return _sum(d for d in divided if d is not None)
    divisor = right.number
    if divisor is None:
        return _polynomial(left, right) if len(right.terms) > 1 else None
    if divisor <= 0:
        return None
    whole = _sum((p, c // divisor) for p, c in left.terms)
    rest = _sum((p, c % divisor) for p, c in left.terms)
    if rest.number is not None:
        return whole + number(rest.number // divisor)
    inner = _inner_quotient(rest)
    if inner is not None:
        # floor((floor(x / a) + b) / c) = floor((x + a b) / (a c)) for whole numbers
        by = inner.right
        flat = quotient(inner.left + (rest - Size((((inner,), 1),))) * by, by * right)
        return None if flat is None else whole + flat
    return whole + Size((((Compound("//", rest, right),), 1),))


def _inner_quotient(size: Size) -> Compound | None:
    """The only quotient by a number among the terms, if it is a term by itself."""
    found = [
        a for product, _ in size.terms for a in product if isinstance(a, Compound) and a.kind == "//" and a.right.number
    ]
    return found[0] if len(found) == 1 and ((found[0],), 1) in size.terms else None


def _polynomial(left: Size, right: Size) -> Size | None:
    """left / right for sums, by division of polynomials, if nothing is left over.

    An example is the batch of windows of a padded image, whose sides are sums, divided by their number.
    """
    atoms = sorted({_key(a) for product, _ in (*left.terms, *right.terms) for a in product})

    def order(term: tuple[Product, int]) -> tuple[int, list[int]]:
        keys = [_key(a) for a in term[0]]
        return len(keys), [keys.count(atom) for atom in atoms]

    product, count = max(right.terms, key=order)
    total, rest = number(0), left
    for _ in range(_MOST_STEPS):
        if not rest.terms:
            return total
        part = _over(max(rest.terms, key=order), product, count)
        if part is None:
            return None
        total, rest = total + _sum([part]), rest - _sum([part]) * right
    return None


def _over(term: tuple[Product, int], product: Product, count: int) -> tuple[Product, int] | None:
    """A term divided by another one, if nothing is left over."""
    atoms = list(term[0])
    for atom in product:
        if atom not in atoms:
            return None
        atoms.remove(atom)
    return (tuple(atoms), term[1] // count) if term[1] % count == 0 else None


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


def broadcast(one: Size | None, other: Size | None) -> Size | None:
    """The size of two dimensions that are broadcast with each other; None if it is not known."""
    if one is None or other is None:
        return None
    if one == other or other.number == 1:
        return one
    if one.number == 1:
        return other
    for size in (one, other):
        if size.number is not None and size.number > 1:
            return size  # the other one is 1 or equal
    return None


def differ(left: Size, right: Size) -> bool | None:
    """Whether two sizes are different for all sizes of the names: True, False if they are always equal, else None."""
    if left == right:
        return False
    gap = left - right
    for side in (gap, -gap):
        if side.least is not None and side.least > 0:
            return True
    return None


_MOST_TRIED = 4096


def is_positive_dimension(size: Size) -> bool:
    """Whether a dimension of this size is at least 1 in every run, as it depends on one name alone: see `least_size`.

    A size that is limited from below may be 0.
    """
    return len(size.names) == 1 and "max(" not in size.text


def least_size(name: str, sizes: Iterable[Size]) -> int:
    """The least size of a named dimension with which none of the sizes that depend on it alone is empty.

    Windows of convolutions and pools need that many elements. Sizes that are limited from below may be 0.
    """
    alone = [s for s in sizes if s.names == {name} and s.name is None and is_positive_dimension(s)]
    return next((n for n in range(1, _MOST_TRIED) if all(s.at({name: n}) > 0 for s in alone)), 1)
