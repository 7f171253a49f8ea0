"""Sweeps of `bench`: several sizes of dimensions and numbers of threads, every combination of which is timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heterocc.artifacts.errors import ShapeOptionError, UsageError
from heterocc.runtime.files.shape_options import parse_dims

MOST = 1000
"""The points of a sweep at most."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Numbers of threads, sizes of named dimensions, and of the dimension that comes first in the inputs (`batch`)."""

    threads: Sequence[int] = ()
    dims: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch: Sequence[int] = ()

    def __bool__(self) -> bool:
        """Whether there is more than one point."""
        return any(len(values) > 1 for values in (self.threads, self.batch, *self.dims.values()))

    def sizes(self, session: Any) -> Iterator[dict[str, int]]:
        """The sizes of each point by dimension. Raises ShapeOptionError (HC106) if `batch` is none of them."""
        if self.batch:
            first = [info.shape[0] for info in session.inputs if info.shape]
            named = dict.fromkeys(dim for dim in first if isinstance(dim, str) and dim not in self.dims)
            if not named:
                raise ShapeOptionError(
                    "no input begins with a dynamic dimension",
                    where="--batch",
                    hint="`heterocc inspect` shows the inputs; --dim NAME=1,8 names another dimension",
                )
            # One number for all of them, not every combination.
            for batch in self.batch:
                for point in _combinations(self.dims):
                    yield {**dict.fromkeys(named, batch), **point}
            return
        yield from _combinations(self.dims)


NO_SWEEP = Sweep()


def _combinations(dims: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    for values in itertools.product(*dims.values()):
        yield dict(zip(dims, values, strict=True))


def parse_sweep(threads: str | None, dims: Sequence[str] | None, batch: str | None) -> Sweep:
    """The sweep of `--threads 1,2`, `--dim n=1,8,32` and `--batch 1,8`.

    Raises ShapeOptionError (HC106) for malformed sizes, and UsageError (HC120) for other numbers and too many points.
    """
    found: dict[str, tuple[int, ...]] = {}
    for option in dims or ():
        name, sign, text = option.rpartition("=")
        parts = text.split(",")
        # One at a time: `parse_dims` explains what is wrong with one.
        sizes = [parse_dims([f"{name}{sign}{part}"]) for part in parts]
        if name in found:
            raise ShapeOptionError(f"dimension '{name}' is given twice", where=f"--dim {option}")
        found[name] = tuple(size[name] for size in sizes)
    sweep = Sweep(_numbers("--threads", threads, 1), found, _numbers("--batch", batch, 0))
    points = max(len(sweep.threads), 1) * max(len(sweep.batch), 1)
    for values in found.values():
        points *= len(values)
    if points > MOST:
        raise UsageError(f"the sweep has {points} points", where="--dim", hint=f"at most {MOST} are timed")
    return sweep


def _numbers(option: str, text: str | None, least: int) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(p.isascii() and p.isdecimal() and len(p) < 10 and int(p) >= least for p in parts):
        raise UsageError(
            f"'{text}' is not a list of whole numbers from {least} to 999,999,999", where=option, hint=f"{option} 1,2"
        )
    return tuple(dict.fromkeys(map(int, parts)))
