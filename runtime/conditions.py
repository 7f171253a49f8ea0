"""Conditions of the sizes of inputs, which hold in each run that a variant's code can compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heterocc.artifacts.errors import FeedError
from heterocc.artifacts.manifest import Condition, Expression, Variant

_MOST_TRIED = 4096
"""The conditions that are evaluated, in each direction, in search of a size that fits: a refusal must not take long."""

_TEXTS = {"equal": "", "at_least": " or more", "multiple": "", "broadcast": " or 1"}


class Conditions:
    """Checks the conditions of a variant for the shapes of its inputs. Thread-safe."""

    __slots__ = ("_conditions", "_last", "_names", "_places", "_where")

    def __init__(self, variant: Variant, inputs: Sequence[str], where: str) -> None:
        """`inputs` are the model's names of the variant's."""
        self._conditions = variant.conditions
        self._names = tuple(inputs)
        self._where = where
        self._last: tuple[int, ...] | None = None
        used = {t[1:] for c in variant.conditions for t in (*c.left, *c.right) if isinstance(t, str) and t[0] == "$"}
        places: dict[str, tuple[int, int]] = {}
        for number, value in enumerate(variant.inputs):
            for axis, dim in enumerate(variant.values[value].shape or ()):
                if isinstance(dim, str) and dim in used:
                    places.setdefault(dim, (number, axis))
        self._places = places

    def check(self, arrays: Sequence[Any]) -> None:
        """Raise FeedError (HC110) for inputs of a run that code cannot compute. Their ranks must be checked before."""
        sizes = self._sizes(arrays)
        if sizes == self._last:
            return
        named = dict(zip(self._places, sizes, strict=True))
        for condition in self._conditions:
            if not holds(condition, named):
                raise self._refusal(condition, named)
        self._last = sizes

    def are_met(self, arrays: Sequence[Any]) -> bool:
        """Whether code can compute a run with these inputs, whose ranks must be checked before."""
        named = dict(zip(self._places, self._sizes(arrays), strict=True))
        return all(holds(condition, named) for condition in self._conditions)

    def _sizes(self, arrays: Sequence[Any]) -> tuple[int, ...]:
        return tuple(arrays[number].shape[axis] for number, axis in self._places.values())

    def _refusal(self, condition: Condition, sizes: Mapping[str, int]) -> FeedError:
        tokens = (*condition.left, *condition.right)
        used = [name for name in self._places if f"${name}" in tokens]
        given = " and ".join(
            f"dimension '{name}' of input '{self._names[self._places[name][0]]}' is {sizes[name]}" for name in used
        )
        left, right = (value_of(side, sizes) for side in (condition.left, condition.right))
        multiple = "a multiple of " if condition.relation == "multiple" else ""
        bound = f"{multiple}{right}{_TEXTS[condition.relation]}"
        return FeedError(
            f"{given}: {condition.node} needs {condition.what} to be {bound}, not {left}",
            where=self._where,
            hint=self._hint(used, sizes),
        )

    def _hint(self, used: Sequence[str], sizes: Mapping[str, int]) -> str:
        if len(used) != 1:
            return "give inputs whose sizes fit each other"
        (name,) = used
        own = [c for c in self._conditions if any(t == f"${name}" for t in (*c.left, *c.right))]

        def fits(size: int) -> bool:
            return all(holds(c, {**sizes, name: size}) for c in own)

        most = _MOST_TRIED // len(own)
        below = next((n for n in range(sizes[name] - 1, max(0, sizes[name] - most), -1) if fits(n)), None)
        above = next((n for n in range(sizes[name] + 1, sizes[name] + most) if fits(n)), None)
        found = " or ".join(str(n) for n in (below, above) if n is not None)
        return f"give '{name}' a size such as {found}" if found else "give inputs of other sizes"


def holds(condition: Condition, sizes: Mapping[str, int]) -> bool:
    """Whether a condition holds for sizes of the named dimensions."""
    try:
        left, right = (value_of(side, sizes) for side in (condition.left, condition.right))
        match condition.relation:
            case "equal":
                return left == right
            case "at_least":
                return left >= right
            case "multiple":
                return left % right == 0
        return left == right or 1 in (left, right)
    except ZeroDivisionError:
        return False


def value_of(expression: Expression, sizes: Mapping[str, int]) -> int:
    """The value of an expression for sizes of the named dimensions. Raises ZeroDivisionError."""
    values: list[int] = []
    for token in expression:
        if isinstance(token, int):
            values.append(token)
        elif token[0] == "$":
            values.append(sizes[token[1:]])
        else:
            right, left = values.pop(), values.pop()
            match token:
                case "+":
                    values.append(left + right)
                case "*":
                    values.append(left * right)
                case "//":
                    values.append(left // right)
                case "min":
                    values.append(min(left, right))
                case _:
                    values.append(max(left, right))
    return values[0]
