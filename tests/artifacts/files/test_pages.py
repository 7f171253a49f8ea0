"""Large pages are asked for where a mapping has room for them."""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path

import pytest

from heterocc.artifacts.files.pages import LARGE, ask_for_large_pages

SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _advice(path: str) -> list[str]:
    """The flags of the mapping of a file in this process."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.endswith(path))
    return next(line for line in lines[start:] if line.startswith("VmFlags")).split()


# A kernel without large pages refuses the advice.
@pytest.mark.skipif(not SWITCH.exists(), reason="this kernel has no large pages")
def test_a_large_mapping_of_a_file_may_have_large_pages_and_a_small_one_stays_as_it_is() -> None:
    for nbytes, wanted in ((LARGE, True), (LARGE - mmap.PAGESIZE, False)):
        with tempfile.NamedTemporaryFile() as file:
            file.truncate(nbytes)
            with mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_READ) as memory:
                ask_for_large_pages(memory)
                assert ("hg" in _advice(file.name)) == wanted
