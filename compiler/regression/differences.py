"""Differences of two bundles by kind, and how their texts are written."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.text.one_line import one_line

KINDS = ("versions", "model", "plan", "kernels", "code", "weights", "golden", "other", "size", "estimate", "time")
"""The kinds of differences, in the order of the report. `other` are notes and members, `time` needs a measurement."""

DEFAULT_KINDS = tuple(kind for kind in KINDS if kind not in ("size", "estimate"))
"""The kinds that count as a difference by default; the others follow from them."""

MAX_LINES = 60
"""Maximum number of lines of one text's differences."""
_NAMED = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: its place (`variant main, p0`), one sentence, and details such as the lines of a text."""

    where: str
    text: str
    details: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """As `heterocc diff --json` prints it."""
        return {"where": self.where, "text": self.text, "details": list(self.details)}


@dataclass(frozen=True)
class BundleDiff:
    """The differences of two bundles by kind; a kind without any is left out.

    `digests` and `sizes` (bytes) are of the two files, `estimates` their estimated seconds by variant, None if unknown.
    """

    paths: tuple[str, str]
    digests: tuple[str, str]
    sizes: tuple[int, int]
    estimates: Mapping[str, tuple[float | None, float | None]]
    differences: Mapping[str, tuple[Difference, ...]] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Return whether the two bundles have the same content."""
        return self.digests[0] == self.digests[1]

    def failed(self, kinds: Sequence[str] = DEFAULT_KINDS) -> tuple[str, ...]:
        """The kinds of these that differ."""
        return tuple(kind for kind in KINDS if kind in kinds and self.differences.get(kind))

    def __repr__(self) -> str:
        found = ", ".join(self.differences) or "no difference"
        return f"<BundleDiff of {self.paths[0]} and {self.paths[1]}: {found}>"

    def lines(self) -> Iterator[str]:
        """The differences as text, a line for each and indented lines for details."""
        if not self.differences:
            yield "the bundles have the same content"
        for kind, found in self.differences.items():
            for difference in found:
                place = f"{difference.where}: " if difference.where else ""
                yield f"{kind:<9} {place}{difference.text}"
                yield from (f"            {line}" for line in difference.details)

    def to_json(self) -> dict[str, object]:
        """As `heterocc diff --json` prints it."""
        return {
            "bundles": list(self.paths),
            "digests": list(self.digests),
            "bytes": list(self.sizes),
            "estimated_seconds": {name: list(pair) for name, pair in self.estimates.items()},
            "same": self.same,
            "differences": {kind: [d.to_json() for d in found] for kind, found in self.differences.items()},
        }


def parse_kinds(text: str) -> tuple[str, ...]:
    """Parse `--fail-on`: kinds with commas between, `all` or `none`. Raises UsageError (HC120)."""
    if text == "all":
        return KINDS
    names = () if text == "none" else tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in KINDS:
            raise UsageError(
                f"'{name}' is not a kind of difference", where=f"--fail-on {text}", hint=f"kinds: {', '.join(KINDS)}"
            )
    return names


# ---- texts --------------------------------------------------------------------------------------------------------


def changed(what: str, one: object, other: object) -> Iterator[Difference]:
    """The difference of a field, if there is one."""
    if one != other:
        yield Difference("", f"{what}: {_shown(one)} → {_shown(other)}")


def _shown(value: object) -> str:
    return "none" if value is None else one_line(str(value))[:200]


def in_percent(one: float, other: float) -> str:
    """The change from one number to the other, to follow them in a text."""
    return f" ({(other - one) / one:+.1%})" if one else ""


def changed_lines(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    """The lines that differ, with a sign in front; context where it shows the place."""
    lines = list(difflib.unified_diff(one, other, lineterm="", n=1))[2:]
    return shortened(lines, MAX_LINES)


def shortened(lines: Iterable[str], most: int = _NAMED) -> tuple[str, ...]:
    """The first lines, and how many more there are."""
    listed = list(lines)
    more = len(listed) - most
    return (*listed[:most], f"… {more} more") if more > 0 else tuple(listed)


def comma_list(names: Sequence[str]) -> str:
    """The names, or that there are none."""
    return ", ".join(names) or "none"
