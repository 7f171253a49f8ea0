"""Permission to use the registers for matrices (AMX), which Linux gives to a process that asks for it.

Without it the first such instruction ends the process. Source: Linux, Documentation/arch/x86/xstate.rst.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys

_ARCH_PRCTL = 158
"""The number of the system call on x86-64."""

_REQUEST = 0x1023
"""ARCH_REQ_XCOMP_PERM."""

_TILE_DATA = 18
"""XFEATURE_XTILEDATA, the contents of the registers."""


def is_matrix_feature(feature: str) -> bool:
    """Whether a CPU feature (LLVM's name) is one of the registers for matrices."""
    return feature.startswith("amx-")


@functools.cache
def may_use_matrices() -> bool:
    """Ask for the permission, for all threads of the process, and return whether it is given.

    The system refuses if it does not know these registers, or if a thread has an alternate signal stack that is too
    small for them. Child processes keep the permission until they start another program.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST, _TILE_DATA) == 0)
