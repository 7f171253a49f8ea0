"""Prefetches of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Step
from heterocc.compiler.lower.cpu.generate.places import index

FAR_NUMBERS = 192 << 10
"""The number of weights above which they are prefetched; fewer stay in a second-level cache."""

AHEAD = 1024
"""The distance in elements between a weight in use and the prefetched one."""

LINE = 16
"""The float32 elements of a cache line."""


def fetching(step: Step, weights: tirx.Buffer, count: int, place: Callable[[Any], tirx.Expr]) -> Step:
    """A step of a sum that prefetches weights, of which each term has `count`; `place(term)` is that of the first."""
    every = max(n for n in (1, 2, 4) if n * count <= LINE or n == 1)

    def ahead(term: Any, number: int) -> None:
        if number % every == 0:
            emit.prefetch(weights, place(term) + index(AHEAD))
        step(term, number)

    return ahead
