"""The emulator of 64-bit ARM that runs generated kernels for it (Debian: qemu-user)."""

from __future__ import annotations

import importlib.util
import shutil

EMULATOR = "qemu-aarch64"


def unavailable_reason() -> str | None:
    """Why code for 64-bit ARM cannot be run here; None if it can."""
    if shutil.which(EMULATOR) is None:
        return f"{EMULATOR} is not on the PATH (Debian: qemu-user)"
    if importlib.util.find_spec("ziglang") is None:
        return "there is no compiler for aarch64-linux-gnu (pip install ziglang)"
    return None
