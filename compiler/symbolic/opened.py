"""What is known at import of sequences and optional values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Listed:
    """A sequence of these elements."""

    elements: tuple[Opened, ...]

    @property
    def tensors(self) -> tuple[str, ...] | None:
        """The elements if all of them are tensors, else None."""
        names = tuple(e for e in self.elements if isinstance(e, str))
        return names if len(names) == len(self.elements) else None


@dataclass(frozen=True, slots=True)
class Pieces:
    """A sequence of the pieces of a tensor along an axis, each `step` long, whose number is not known.

    `step` is 1 or more. Without `keepdims`, which needs a step of 1, pieces lack the axis.
    """

    data: str
    axis: int
    step: int
    keepdims: bool


@dataclass(frozen=True, slots=True)
class Maybe:
    """An optional value with this content; None if it is known to be empty."""

    content: Opened | None


Opened = str | Listed | Pieces | Maybe
"""A tensor, by its name, or what is known of a sequence or an optional value."""
