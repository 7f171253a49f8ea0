"""The properties of a device, parsed from the texts of a manifest or of `--property`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from heterocc.artifacts.frozen import frozen

MAX_THREADS = 1024
"""More than the cores of nearly every machine. The runtime does not start more threads than the machine has cores."""

CPU_PROPERTY = "cpu"
"""The property of a CPU device that names the CPU its code is for, if the compile named several."""

Precision = Literal["f32", "f16", "bf16"]


@frozen
class Settings:
    """What code for a device and its runs depend on; a text that is not known is the default.

    `precision` is `f32`, `f16` or `bf16`. `threads` is None for all cores. `profile` times every kernel, `binaries`
    stores the driver's binaries of kernels, `tune` chooses schedules by timing them, `fast_math` allows larger rounding
    errors, and `denormals` computes with denormal numbers. `cpu` is the CPU that the code is for, if the compile named
    several.
    """

    precision: Precision = "f32"
    threads: int | None = None
    profile: bool = False
    binaries: bool = False
    tune: bool = False
    fast_math: bool = False
    denormals: bool = False
    cpu: str | None = None


_SWITCHES = ("profile", "binaries", "tune", "fast_math", "denormals")
_PRECISIONS: Mapping[str, Precision] = {"f16": "f16", "bf16": "bf16"}
_DEFAULT = Settings()


def settings_of(texts: Mapping[str, str]) -> Settings:
    """The settings of a device with these properties."""
    if not texts:
        return _DEFAULT
    return Settings(
        precision=_PRECISIONS.get(texts.get("precision", ""), "f32"),
        threads=parse_threads(texts.get("threads", "")),
        cpu=texts.get(CPU_PROPERTY),
        **{name: texts.get(name) == "on" for name in _SWITCHES},
    )


def parse_threads(text: str) -> int | None:
    """The value of the property `threads`, ASCII digits from 1 to MAX_THREADS; None for other text."""
    count = int(text) if re.fullmatch(r"[0-9]{1,4}", text) else 0
    return count if 1 <= count <= MAX_THREADS else None
