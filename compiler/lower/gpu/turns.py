"""Loops that load or store the values of an item a row at a time, with the values in registers.

Values are in registers as long as their indices are constant, so that a loop cannot address them by its variable. It
can move them: each turn loads or stores the row at one end, and moves all others by a row. See contraction/rotation.py
for what this saves.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from heterocc.compiler.lower.gpu import nest

Element = Callable[[int | tirx.Expr, int], tirx.Expr]
"""The element in a row, which is a number or that of a turn, and a column."""

Store = Callable[[int | tirx.Expr, int, tirx.Expr], tirx.Stmt]
"""The store of a value in a row, which is a number or that of a turn, and a column."""


def loaded_in_turns(values: tirx.Buffer, width: int, element: Element) -> tirx.Stmt:
    """Fill `values`, a private buffer of rows of `width` places."""
    last = int(values.shape[0]) - width

    def turn(row: tirx.Expr) -> tirx.Stmt:
        new = [tirx.BufferStore(values, element(row, i), [nest.index(last + i)]) for i in range(width)]
        return nest.sequence([*_moves(values, width), *new])

    return nest.loop("turn", int(values.shape[0]) // width, turn, rolled=True)


def stored_in_turns(values: tirx.Buffer, width: int, store: Store) -> tirx.Stmt:
    """Store `values`, a private buffer of rows of `width` places; they are not there any more afterwards."""

    def turn(row: tirx.Expr) -> tirx.Stmt:
        stores = [store(row, i, tirx.BufferLoad(values, [nest.index(i)])) for i in range(width)]
        return nest.sequence([*stores, *_moves(values, width)])

    return nest.loop("turn", int(values.shape[0]) // width, turn, rolled=True)


def _moves(values: tirx.Buffer, width: int) -> list[tirx.Stmt]:
    """Move each row to the place of the row before it."""
    places = range(int(values.shape[0]) - width)
    return [tirx.BufferStore(values, tirx.BufferLoad(values, [nest.index(i + width)]), [nest.index(i)]) for i in places]
