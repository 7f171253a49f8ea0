"""Sizes as a bundle states them."""

from __future__ import annotations

from collections.abc import Iterator

from heterocc.compiler.symbolic.sizes import Compound, Size


def postfix(size: Size) -> Iterator[int | str]:
    """A size in postfix notation."""
    if not size.terms:
        yield 0
    for index, (product, count) in enumerate(size.terms):
        parts = 0
        if count != 1 or not product:
            yield count
            parts = 1
        for atom in product:
            if isinstance(atom, Compound):
                yield from postfix(atom.left)
                yield from postfix(atom.right)
                yield atom.kind
            else:
                yield f"${atom}"
            if parts:
                yield "*"
            parts += 1
        if index:
            yield "+"
