"""The order in which a depth-first search leaves what it visits, and a cycle if it meets one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def depth_first(starts: Iterable[K], following: Callable[[K], Iterable[K]]) -> tuple[list[K], list[K]]:
    """All keys that can be reached, each after those that follow it, and the first cycle met, each before the next.

    The cycle is empty if there is none; else the search ends with it.
    """
    order: list[K] = []
    entered: set[K] = set()
    left: set[K] = set()
    for start in starts:
        if start in entered:
            continue
        entered.add(start)
        path: list[tuple[K, Iterator[K]]] = [(start, iter(following(start)))]
        while path:
            key, rest = path[-1]
            for other in rest:
                if other not in entered:
                    entered.add(other)
                    path.append((other, iter(following(other))))
                    break
                if other not in left:
                    keys = [key for key, _ in path]
                    return order, keys[keys.index(other) :]
            else:
                path.pop()
                left.add(key)
                order.append(key)
    return order, []
