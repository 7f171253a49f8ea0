"""Division of sizes of named dimensions."""

from __future__ import annotations

from heterocc.compiler.symbolic.sizes import Compound, Product, Size, number, order_key, sum_of_terms

_MOST_STEPS = 64
"""The most terms of a quotient of sums."""


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
            return sum_of_terms(d for d in divided if d is not None)
    divisor = right.number
    if divisor is None:
        return _polynomial(left, right) if len(right.terms) > 1 else None
    if divisor <= 0:
        return None
    whole = sum_of_terms((p, c // divisor) for p, c in left.terms)
    rest = sum_of_terms((p, c % divisor) for p, c in left.terms)
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
    atoms = sorted({order_key(a) for product, _ in (*left.terms, *right.terms) for a in product})

    def order(term: tuple[Product, int]) -> tuple[int, list[int]]:
        keys = [order_key(a) for a in term[0]]
        return len(keys), [keys.count(atom) for atom in atoms]

    product, count = max(right.terms, key=order)
    total, rest = number(0), left
    for _ in range(_MOST_STEPS):
        if not rest.terms:
            return total
        part = _over(max(rest.terms, key=order), product, count)
        if part is None:
            return None
        total, rest = total + sum_of_terms([part]), rest - sum_of_terms([part]) * right
    return None


def _over(term: tuple[Product, int], product: Product, count: int) -> tuple[Product, int] | None:
    """A term divided by another one, if nothing is left over."""
    atoms = list(term[0])
    for atom in product:
        if atom not in atoms:
            return None
        atoms.remove(atom)
    return (tuple(atoms), term[1] // count) if term[1] % count == 0 else None
