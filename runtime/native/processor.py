"""What is known of this machine's processor."""

from __future__ import annotations

import functools
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def cpuinfo() -> str:
    """The text of /proc/cpuinfo, or, where that cannot be read, its fields as far as the processor itself tells them.

    Empty if the CPU plug-in, which asks the processor, is not installed either.
    """
    try:
        return CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        from heterocc.runtime.native.cpu_api import processor  # not at the top: loads TVM's libraries

        return processor()
