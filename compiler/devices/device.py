"""A device that a compile is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Backend = Literal["cpu", "opencl", "vulkan", "cuda", "ort"]

NUMERIC_DTYPES = frozenset(
    ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"]
)


@dataclass(frozen=True, slots=True)
class Device:
    """A resolved device: what the user called it, who runs it, and what code for it must look like.

    `target` holds TVM target attributes (`{"kind": "llvm", "mtriple": …, "mcpu": …}`), empty for ORT. `present` says
    whether this machine has the device, so that code for it can be checked. `software` marks CPU implementations of a
    GPU API (PoCL, lavapipe). `dtypes` are those it can hold and compute. `refuses` are operator types it must not get.
    `flops` in FLOP/s, `bandwidth` in bytes/s, `memory` and `max_buffer` in bytes, None when unknown.
    """

    name: str
    backend: Backend
    index: int = 0
    target: Mapping[str, str | int | bool] = field(default_factory=dict)
    present: bool = True
    software: bool = False
    description: str = ""
    dtypes: frozenset[str] = NUMERIC_DTYPES
    refuses: frozenset[str] = frozenset()
    memory: int | None = None
    max_buffer: int | None = None
    flops: float | None = None
    bandwidth: float | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    static_shapes_only: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", MappingProxyType(dict(self.target)))
        object.__setattr__(self, "properties", MappingProxyType(dict(self.properties)))
