"""The choices of schedules and generators. A cost model ranks the options of each; timing may pick another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

Option = TypeVar("Option")


class Choose(Protocol):
    """Picks one of a rule's options."""

    def __call__(self, name: str, options: Sequence[Option]) -> Option:
        """The option picked. `name` describes the choice; `options` are ranked best first and not empty."""
        ...


def best(name: str, options: Sequence[Option]) -> Option:
    """The option that the model ranks first."""
    return options[0]


@dataclass(slots=True)
class Trail:
    """Picks options by index from `path`, one for each choice in the order in which a rule makes them, then the first.

    It records the name of each choice in `asked`, its number of options in `counts`, the index picked in `taken`, and a
    description of each choice with more than one option in `names`.
    """

    path: tuple[int, ...] = ()
    asked: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def __call__(self, name: str, options: Sequence[Option]) -> Option:
        """Pick an option. Raises IndexError if the path's index is out of range."""
        place = len(self.taken)
        index = self.path[place] if place < len(self.path) else 0
        option = options[index]
        self.asked.append(name)
        self.counts.append(len(options))
        self.taken.append(index)
        if len(options) > 1:
            self.names.append(f"{name} {option}")
        return option

    def neighbours(self) -> list[tuple[int, ...]]:
        """The paths that differ in one choice and end with it; later choices are the model's."""
        return [
            (*self.taken[:place], index)
            for place, count in enumerate(self.counts)
            for index in range(count)
            if index != self.taken[place]
        ]


def ranked(first: Option, others: Iterable[Option]) -> list[Option]:
    """The model's choice, then the others, without duplicates."""
    return list(dict.fromkeys([first, *others]))
