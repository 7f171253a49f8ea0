"""How many threads may be asked for: by a property of a bundle's device, by `--property`, and by a caller."""

from __future__ import annotations

import re

MAX_THREADS = 1024
"""More than the cores of nearly every machine. The runtime starts no more than the machine has."""


def parse_threads(text: str) -> int | None:
    """The number that the property `threads` gives: ASCII digits, from 1 to MAX_THREADS; None for other text."""
    count = int(text) if re.fullmatch(r"[0-9]{1,4}", text) else 0
    return count if 1 <= count <= MAX_THREADS else None
