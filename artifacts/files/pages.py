"""Memory in large pages, which is read faster: its addresses are looked up less often, and neighbours lie together."""

from __future__ import annotations

import contextlib
import mmap

LARGE = 1 << 22
"""Bytes from which large pages are asked for: of less, half could lie in the small ones at both ends."""


def ask_for_large_pages(memory: mmap.mmap) -> None:
    """Let the system keep a mapping in pages of 2 MiB, where it can; done before the first access.

    A file that is not in memory is then read in such pages. The contents are the same without them.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None and len(memory) >= LARGE:
        with contextlib.suppress(OSError):  # a system without them
            memory.madvise(advice)
