"""Where a rule has a choice: its model ranks the options, and what is timed on the device may take another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

Option = TypeVar("Option")


class Choose(Protocol):
    """Takes one of a rule's options, which the rule's model ranks, best first; never an empty list."""

    def __call__(self, name: str, options: Sequence[Option]) -> Option:
        """The option; `name` says what is chosen."""
        ...


def best(name: str, options: Sequence[Option]) -> Option:
    """What the model ranks first."""
    return options[0]


@dataclass(slots=True)
class Trail:
    """Takes the options of `path`, one for each choice in the order in which a rule makes them, then the first ones.

    `counts` is how many options each choice had, `taken` which was taken, `names` what that was where there was
    another.
    """

    path: tuple[int, ...] = ()
    counts: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def __call__(self, name: str, options: Sequence[Option]) -> Option:
        """Raises IndexError where the path asks for an option that there is not."""
        place = len(self.taken)
        index = self.path[place] if place < len(self.path) else 0
        option = options[index]
        self.counts.append(len(options))
        self.taken.append(index)
        if len(options) > 1:
            self.names.append(f"{name} {option}")
        return option

    def neighbours(self) -> list[tuple[int, ...]]:
        """The paths that differ in one choice; choices after that one are the model's."""
        return [
            (*self.taken[:place], index)
            for place, count in enumerate(self.counts)
            for index in range(count)
            if index != self.taken[place]
        ]


def ranked(first: Option, others: Iterable[Option]) -> list[Option]:
    """The model's choice, then others, each once."""
    return list(dict.fromkeys([first, *others]))
