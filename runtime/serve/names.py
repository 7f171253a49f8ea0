"""Names that clients sent, as messages show them."""

from __future__ import annotations

LONGEST = 200
"""Characters of a name that messages show."""


def shown(name: str) -> str:
    """The name, shortened if it is long."""
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}…"
