"""Names of dimensions that are expressions of others, as exporters write them: `past_length + length`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping

_OPERATIONS: Mapping[type[ast.operator], tuple[str, Callable[[int, int], int]]] = {
    ast.Add: ("plus", operator.add),
    ast.Sub: ("minus", operator.sub),
    ast.Mult: ("times", operator.mul),
    ast.FloorDiv: ("over", operator.floordiv),
}

_MOST_CHARACTERS = 200
"""Longer names are not read as expressions."""


def word_for(text: str, names: Collection[str]) -> str | None:
    """The expression in one word, `past_length_plus_length`; None if the text is not one of these names."""
    tree = _parsed(text)
    return None if tree is None or isinstance(tree, ast.Name) or not _names(tree) <= set(names) else _word(tree)


def size_of(text: str, sizes: Mapping[str, int]) -> int | None:
    """The size that a text of these names is; None if it is not an expression, or not of known names."""
    tree = _parsed(text)
    if tree is None or isinstance(tree, ast.Name) or not _names(tree) <= sizes.keys():
        return None
    try:
        return _value(tree, sizes)
    except ZeroDivisionError:
        return None


def _parsed(text: str) -> ast.expr | None:
    """The tree of an expression of names and whole numbers."""
    if len(text) > _MOST_CHARACTERS:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if _is_arithmetic(tree) and _names(tree) else None


def _is_arithmetic(tree: ast.expr) -> bool:
    if isinstance(tree, ast.BinOp):
        return type(tree.op) in _OPERATIONS and _is_arithmetic(tree.left) and _is_arithmetic(tree.right)
    return isinstance(tree, ast.Name) or (isinstance(tree, ast.Constant) and type(tree.value) is int)


def _names(tree: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _word(tree: ast.expr) -> str:
    if isinstance(tree, ast.BinOp):
        return f"{_word(tree.left)}_{_OPERATIONS[type(tree.op)][0]}_{_word(tree.right)}"
    return tree.id if isinstance(tree, ast.Name) else str(getattr(tree, "value", ""))


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(tree, ast.BinOp):
        return _OPERATIONS[type(tree.op)][1](_value(tree.left, sizes), _value(tree.right, sizes))
    return sizes[tree.id] if isinstance(tree, ast.Name) else int(getattr(tree, "value", 0))
