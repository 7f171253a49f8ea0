"""Device names and the ranking of `AUTO` and `GPU`, common to compiling a model and loading a bundle."""

from __future__ import annotations

from typing import Literal

Backend = Literal["cpu", "opencl", "vulkan", "cuda", "ort"]
Unit = Literal["cpu", "discrete", "integrated", "other"]
"""The kind of the processor; `cpu` also for a GPU API that is implemented on the CPU."""

GPU_BACKENDS: tuple[Backend, ...] = ("cuda", "vulkan", "opencl")
"""Back ends that `GPU` may stand for, the preferred one first."""

SOFTWARE_BACKENDS: tuple[Backend, ...] = ("opencl", "vulkan", "cuda")
"""The same order if only software devices are present: PoCL runs kernels faster than lavapipe."""

_KINDS: dict[Unit, tuple[int, str]] = {
    "discrete": (0, "discrete GPU"),
    "integrated": (1, "integrated GPU"),
    "cpu": (2, "CPU"),
    "other": (3, "accelerator"),
}


def label_of(backend: Backend, index: int) -> str:
    """The label of a device in `--devices`, such as `VULKAN` or `VULKAN.1`."""
    return backend.upper() + (f".{index}" if index else "")


def rank(*, computes: bool, present: bool, unit: Unit, software: bool) -> tuple[bool, bool, int]:
    """The sort key of a device: devices that compute the given precisions, then present devices, then by kind.

    The order of kinds is discrete GPU, integrated GPU, CPU; a software device (PoCL, lavapipe) ranks below the CPU that
    emulates it.
    """
    return not computes, not present, 3 if software else _KINDS[unit][0]


def kind_text(unit: Unit, *, software: bool) -> str:
    """The kind of a device in words: `discrete GPU`, `software device`."""
    return "software device" if software else _KINDS[unit][1]
