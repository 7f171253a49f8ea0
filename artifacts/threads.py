"""The limit on numbers of threads in a bundle's properties, in `--property`, and from callers."""

from __future__ import annotations

import re

MAX_THREADS = 1024
"""More than the cores of nearly every machine. The runtime does not start more threads than the machine has cores."""


def parse_threads(text: str) -> int | None:
    """The value of the property `threads`, ASCII digits from 1 to MAX_THREADS; None for other text."""
    count = int(text) if re.fullmatch(r"[0-9]{1,4}", text) else 0
    return count if 1 <= count <= MAX_THREADS else None
