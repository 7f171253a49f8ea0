"""The machine that passes work with: devices in priority order, refused nodes, and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True)
class PartitionRules:
    """Constraints that a device states for its partitions; `rules.within_rules` makes plans obey them.

    A partition must not start with an operator type in `never_first`: a node that reads no value of its own partition;
    nor end with one in `never_last`: a node whose values no node of the partition reads. `only_beside` are operator
    types with the types of which a neighbour, writer or reader, must be in the same partition; no types mean any
    neighbour. A partition has at least `min_nodes` nodes and takes at least `min_seconds` by estimate, where that is
    known. There are at most `max_count` partitions on the device (`None`: unlimited).
    """

    never_first: tuple[str, ...] = ()
    never_last: tuple[str, ...] = ()
    only_beside: tuple[tuple[str, tuple[str, ...]], ...] = ()
    min_nodes: int = 1
    min_seconds: float = 0.0
    max_count: int | None = None


@dataclass(frozen=True, slots=True)
class PlacementDevice:
    """A device for placement.

    `name` is the label of `--devices` (`GPU`, `CPU`, `GPU.1`). `memory` in bytes limits constants plus the outputs of
    the nodes placed there (`None`: unlimited). The cost model uses `flops` in FLOP/s, `bandwidth` in bytes/s, `launch`
    in seconds per node and `overhead` in seconds per partition. `last_resort` devices (ONNX Runtime) get only nodes
    that no other listed device can run. `rules` are the device's constraints on its partitions.
    """

    name: str
    kind: Literal["cpu", "opencl", "vulkan", "cuda", "ort"] = "cpu"
    memory: int | None = None
    flops: float = 1e11
    bandwidth: float = 2e10
    launch: float = 1e-6
    overhead: float = 0.0
    last_resort: bool = False
    rules: PartitionRules = field(default_factory=PartitionRules)


@dataclass(frozen=True, slots=True)
class Link:
    """Cost of a transfer between two devices: `latency` in seconds plus bytes over `bandwidth` (bytes/s)."""

    latency: float = 1e-5
    bandwidth: float = 1e10


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices in order of priority, high to low, the nodes that they refuse, and costs.

    `refusals[device][node]` is the reason why a device cannot run a node; without an entry it can.
    `work[node]` is the node's number of floating-point operations, `seconds[device][node]` a time that replaces the
    estimate from it. `links[(from, to)]` overrides `default_link`; None is a link that cannot be used.
    `kept` has tables that `estimate.node_times` computed from these, with the graph that they are for.
    """

    devices: tuple[PlacementDevice, ...]
    refusals: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    work: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[tuple[str, str], Link | None] = field(default_factory=dict)
    default_link: Link | None = Link()
    seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    kept: dict[str, tuple[object, object]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = [d.name for d in self.devices]
        if not names:
            raise ValueError("a machine needs at least one device")
        if len(set(names)) != len(names):
            raise ValueError(f"a device is listed twice: {', '.join(names)}")
        for attr in ("refusals", "work", "links", "seconds"):
            object.__setattr__(self, attr, MappingProxyType(dict(getattr(self, attr))))

    def device(self, name: str) -> PlacementDevice:
        """The device named `name`. Raises KeyError if there is none."""
        for device in self.devices:
            if device.name == name:
                return device
        raise KeyError(name)

    def refusal(self, device: str, node: str) -> str | None:
        """The reason why `device` cannot run `node`, or None if it can."""
        return self.refusals.get(device, {}).get(node)

    def link(self, source: str, target: str) -> Link | None:
        """The link from one device to another; None if nothing can be transferred."""
        return self.links.get((source, target), self.default_link)

    @property
    def is_connected(self) -> bool:
        """Return whether every device can send to every other one."""
        names = [d.name for d in self.devices]
        return all(self.link(a, b) is not None for a in names for b in names if a != b)
