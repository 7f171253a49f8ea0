"""Schedules the kernels of a partition for a CPU."""

from __future__ import annotations

from typing import Any

from heterocc.compiler.lower.frontend import KernelModule


def schedule_kernels(module: KernelModule, target: Any) -> KernelModule:
    """The module with its kernels scheduled for `target`."""
    return module
