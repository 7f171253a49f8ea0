"""A target device of a compile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from heterocc.artifacts.dtypes import NUMERIC_DTYPES
from heterocc.artifacts.settings import Settings, settings_of
from heterocc.passes.cost import Link, PartitionRules

if TYPE_CHECKING:  # the command line starts without the runtime
    from heterocc.runtime.machine.ranking import Backend, Unit

TargetAttr = str | int | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TargetDevice:
    """A resolved device: its name, its back end, and the target of its code.

    `target` holds TVM target attributes (`{"kind": "llvm", "mtriple": …, "mcpu": …, "mattr": ("+avx2",)}`), empty for
    ORT. `present` is whether this machine has the device, so that code for it can be checked. `software` marks CPU
    implementations of a GPU API (PoCL, lavapipe). `dtypes` are those that it stores and computes. `refuses` are the
    operator types that must not be placed on it. `flops` is in FLOP/s, `bandwidth` in bytes/s, `memory` and
    `max_buffer` in bytes; None if unknown. `properties` are those of `--property` that the runtime uses, `settings` the
    same, parsed. `unit` is the kind of processor, by which `AUTO` ranks. `links` has the cost of transfers to other
    devices, by their names. `partitions` are the device's constraints on its partitions.
    """

    name: str
    backend: Backend
    index: int = 0
    target: Mapping[str, TargetAttr] = field(default_factory=dict)
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
    unit: Unit = "other"
    links: Mapping[str, Link] = field(default_factory=dict)
    partitions: PartitionRules = field(default_factory=PartitionRules)
    settings: Settings = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", settings_of(self.properties))
        object.__setattr__(self, "target", MappingProxyType(dict(self.target)))
        object.__setattr__(self, "properties", MappingProxyType(dict(self.properties)))
        object.__setattr__(self, "links", MappingProxyType(dict(self.links)))

    @property
    def last_resort(self) -> bool:
        """Return whether the device gets only nodes that no other listed device can run."""
        return self.backend == "ort"

    @property
    def half(self) -> bool:
        """Return whether partitions of the device store weights and values in half precision."""
        return self.settings.precision == "f16"

    @property
    def rounds_products(self) -> bool:
        """Return whether factors of products on the device are rounded to bfloat16."""
        return self.settings.precision == "bf16"

    @property
    def fast_math(self) -> bool:
        """Return whether the device may compute in faster ways that have larger rounding errors."""
        return self.settings.fast_math

    @property
    def flushes_denormals(self) -> bool:
        """Return whether code for the device always takes denormal numbers for zeros."""
        return self.backend in ("cpu", "ort") and not self.settings.denormals

    @property
    def keeps_binaries(self) -> bool:
        """Return whether the bundle is to hold the driver's binaries of the device's kernels."""
        return self.settings.binaries

    @property
    def tunes(self) -> bool:
        """Return whether schedules of kernels are to be chosen by timing them on the device."""
        return self.settings.tune

    def target_json(self) -> str | None:
        """The TVM target as JSON text with sorted keys, or None if the device has none."""
        if not self.target:
            return None
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in self.target.items()}
        return json.dumps(plain, sort_keys=True, separators=(",", ":"))
