"""How devices are named and `AUTO` and `GPU` rank them: the same when a model is compiled and a bundle is loaded."""

from __future__ import annotations

from typing import Literal

Backend = Literal["cpu", "opencl", "vulkan", "cuda", "ort"]
Unit = Literal["cpu", "discrete", "integrated", "other"]
"""What kind of machine computes: `cpu` also where a GPU API is implemented on it."""

GPU_BACKENDS: tuple[Backend, ...] = ("cuda", "vulkan", "opencl")
"""Back ends that `GPU` may stand for, the preferred one first."""

SOFTWARE_BACKENDS: tuple[Backend, ...] = ("opencl", "vulkan", "cuda")
"""The same where only software devices are here: PoCL runs kernels faster than lavapipe."""

_KINDS: dict[Unit, tuple[int, str]] = {
    "discrete": (0, "discrete GPU"),
    "integrated": (1, "integrated GPU"),
    "cpu": (2, "CPU"),
    "other": (3, "accelerator"),
}


def label_of(backend: Backend, index: int) -> str:
    """The name by which `--devices` lists a device: `VULKAN`, `VULKAN.1`."""
    return backend.upper() + (f".{index}" if index else "")


def rank(*, computes: bool, present: bool, unit: Unit, software: bool) -> tuple[bool, bool, int]:
    """Ascending: devices that compute the precisions asked for, devices that are here, then by kind.

    Discrete GPU, integrated GPU, CPU; a software device (PoCL, lavapipe) comes after the CPU that plays it.
    """
    return not computes, not present, 3 if software else _KINDS[unit][0]


def kind_text(unit: Unit, *, software: bool) -> str:
    """The kind of a device in words: `discrete GPU`, `software device`."""
    return "software device" if software else _KINDS[unit][1]
