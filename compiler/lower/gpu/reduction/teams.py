"""How many work items and work groups share the rows of a reduction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from heterocc.compiler.lower.cpu.blocks import itemsize
from heterocc.compiler.lower.gpu.choices import ranked
from heterocc.compiler.lower.gpu.groups import SIMD
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.reduction.row_code import steps
from heterocc.compiler.lower.gpu.reduction.rows import Rows


@dataclass(frozen=True, slots=True)
class Team:
    """A work group: `rows` rows of `items` items each; neighbours in the group are so in the row or `across` rows.

    Where `parts` is over one, so many groups share each row: a kernel for every reduction, and one for what follows.
    """

    items: int
    rows: int
    across: bool
    parts: int = 1

    def __str__(self) -> str:
        return f"{self.items} x {self.rows}{' across' * self.across}{f' in {self.parts} parts' * (self.parts > 1)}"


GROUP = 256
"""Most work items of a group: what every device of the last decade takes."""

BUNDLE = 32
"""Items that share an access to memory on GPUs, if they read neighbours."""

BUSY = 1 << 16
"""Work items that keep a large GPU busy."""

TERMS = 4
"""Terms that an item should have at least, for the merging afterwards to be worth it."""

FEW_ROWS = 32
"""Rows below which the cores of a CPU that plays a GPU want several items a row: a vector of them runs side by side."""

MOST_STEPS = 1 << 15
"""Steps of loops that one item may make on such a device: lavapipe ends all loops of a shader after 65535 in all."""

MOST_PARTS = 512
"""Groups that share a row, at most: each later kernel goes through the results of all."""

LONG = 256
"""Terms of an item from which another kernel costs less than what more groups save: some microseconds."""

PART_TERMS = 32
"""Terms that an item should have at least where groups share a row."""

CORES = 64
"""Groups that keep the cores of a CPU busy, with some to spare for the slowest."""

CORE_TERMS = 1 << 13
"""Terms that such a group should have at least: they take a core about as long as it takes to start another kernel."""


def teams_of(rows: Rows, limits: Limits, params: int) -> list[Team]:
    """The teams for a kernel of `params` parameters that are worth a try, what the model takes for the best first."""
    shares = params + len(part_dtypes(rows)) <= limits.buffers
    first = _software_team(rows, limits, shares) if limits.software else _team(rows, limits, shares)
    most = _most_items(rows, limits)
    others = [replace(first, items=n) for n in (first.items * 2, first.items // 2) if 1 < n <= most // first.rows]
    others += [replace(first, parts=n) for n in (first.parts * 2, first.parts // 2) if first.parts > 1 and n > 1]
    return ranked(first, [t for t in others if not limits.software or _rounds(rows, t) <= MOST_STEPS])


def _rounds(rows: Rows, team: Team) -> int:
    """How often an item goes round the loops of a launch, about."""
    passes = rows.passes if team.parts == 1 else 1
    return passes * rows.length // (team.items * team.parts)


def part_dtypes(rows: Rows) -> tuple[str, ...]:
    """The dtypes of what groups that share a row leave to later kernels: each has a buffer."""
    return tuple(dict.fromkeys(d for r in rows.reductions for d in r.accumulator.dtypes))


def parts_for_cores(rows: Rows, groups: int) -> int:
    """Groups that share a row on a CPU, where one a row makes `groups`; one where that makes enough of them."""
    if groups * 8 > CORES:
        return 1
    return max(1, min(CORES // groups, rows.length * (rows.count // groups) // CORE_TERMS))


def _team(rows: Rows, limits: Limits, shares: bool) -> Team:
    """Neighbouring items read neighbours in memory; a row has as many as it takes to keep the device busy."""
    most = _most_items(rows, limits)
    across = _across(rows)
    abreast = min(BUNDLE, _power_from(rows.extents[-1]), most) if across else 1
    items = 1 if across or rows.length < BUNDLE else min(BUNDLE, most)
    while items * 2 * abreast <= most and rows.length >= 2 * items * TERMS and rows.count * items < BUSY:
        items *= 2
    if items == 1:
        return Team(1, min(2 * BUNDLE, most), True)
    while not across and items * abreast * 2 <= min(2 * BUNDLE, most) and abreast * 2 <= rows.count:
        abreast *= 2
    busy, terms = rows.count * items, rows.length // items
    if not shares or busy >= BUSY or terms < LONG:
        return Team(items, abreast, across)
    return Team(items, abreast, across, max(1, min(4 * BUSY // busy, terms // PART_TERMS, MOST_PARTS)))


def _software_team(rows: Rows, limits: Limits, shares: bool) -> Team:
    """Barriers cost more than they save where there are rows enough; groups share what is too long for one of them."""
    most, across = _most_items(rows, limits), _across(rows)
    items, abreast = 1, min(8 * SIMD if rows.count >= 64 * SIMD else SIMD, most)
    if rows.count < FEW_ROWS:
        abreast = min(SIMD, _power_from(rows.extents[-1]), most) if across else 1
        items = max(1, min(SIMD, _power_up_to(rows.length), most) // abreast)
    parts = 1
    if shares:
        needed = -(-rows.passes * rows.length // (items * MOST_STEPS))
        parts = min(max(parts_for_cores(rows, -(-rows.count // abreast)), needed), MOST_PARTS)
    team = Team(items, abreast, across or items == 1, parts)
    while team.items * 2 <= most and _rounds(rows, team) > MOST_STEPS:
        team = Team(team.items * 2, 1, False, parts)
    return team


def _across(rows: Rows) -> bool:
    """Whether neighbouring rows, rather than neighbours in a row, lie side by side."""
    return bool(rows.extents) and steps(rows, across=True) <= {0, 1} and not steps(rows, across=False) <= {0, 1}


def _most_items(rows: Rows, limits: Limits) -> int:
    """The most items of a group, a power of two: each has its results in shared memory, twice."""
    each = sum(2 * itemsize(d) for r in rows.reductions for d in r.accumulator.dtypes)
    return _power_up_to(max(1, min(GROUP, limits.group, limits.shared // each)))


def _power_up_to(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def _power_from(number: int) -> int:
    return 1 << (number - 1).bit_length()
