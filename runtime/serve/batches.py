"""Batches: requests of one model that run together, joined along the first dimension."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heterocc.runtime.feeds import Array
from heterocc.runtime.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Share:
    """What a request adds to a batch: `rows`, and a `key` that the requests of one batch have in common."""

    key: Hashable
    rows: int


@dataclass(frozen=True, slots=True)
class Batching:
    """The batches of a model: at most `limit` rows, of a number that each of `sizes` allows."""

    limit: int
    sizes: tuple[Sizes, ...] = ()

    def allows(self, rows: int) -> bool:
        """Return whether a run of several requests may have so many rows."""
        return rows <= self.limit and all(rows in sizes for sizes in self.sizes)

    def select(self, shares: Iterable[Share | None]) -> list[int]:
        """The places of the requests that should run together: the first, and later ones of its kind.

        Later ones are taken in their order, as long as the number of rows is within the limit; if only some numbers
        of rows are allowed, up to the largest such number.
        """
        first, *rest = shares
        taken, rows, best = [0], 0 if first is None else first.rows, 1
        for place, share in enumerate(rest, 1):
            if share is None or first is None or share.key != first.key or rows + share.rows > self.limit:
                continue
            taken.append(place)
            rows += share.rows
            if self.allows(rows):
                best = len(taken)
        return taken[:best]


def join(feeds: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """One feed from several, whose arrays follow each other along the first dimension."""
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def split(results: Sequence[Array], rows: Sequence[int]) -> list[list[Array]]:
    """For each request its rows of the results, without a copy. Raises ValueError if a result has other rows."""
    for array in results:
        if array.ndim == 0 or array.shape[0] != sum(rows):
            raise ValueError(f"a result has the shape {list(array.shape)} after a batch of {sum(rows)} rows")
    ends = np.cumsum(rows)
    return [[array[end - count : end] for array in results] for count, end in zip(rows, ends, strict=True)]
