"""The machine that passes work with, derived from the compiler's devices."""

from __future__ import annotations

from collections.abc import Mapping

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.estimates.flops import node_flops
from heterocc.compiler.importer.model import ImportedModel
from heterocc.passes.cost import Link, Machine, PlacementDevice

DISCRETE_LINK = Link(latency=2e-5, bandwidth=1e10)
"""The bandwidth that copies reach over PCIe 3.0 x16, and the latency of a driver's call and wait."""
SHARED_LINK = Link(latency=1e-5, bandwidth=1e10)
"""Devices that share memory with the host but copy through an API."""
HOST_LINK = Link(latency=2e-6, bandwidth=1e11)
"""The link from CPU to ONNX Runtime, which share memory, so that nothing is copied."""
ORT_OVERHEAD = 9e-6
"""Seconds of each partition in ONNX Runtime. Chains of small additions, of which every second one is in ONNX Runtime,
take 15 us more for each two partitions and two values between them with dynamic sizes, and 5.5 us with fixed ones."""
ORT_FLOPS = 0.75
"""The share of the CPU's FLOP/s that ONNX Runtime reaches, compared with our code.

`benchmarks/fit/placement.py` fits it, and the launches, to 57 real models: these constants are off by a factor of 1.38,
the best by 1.37, and both choose the faster code in 51."""

_LAUNCH = {"cpu": 1e-6, "ort": 1.5e-6, "opencl": 1e-5, "vulkan": 1e-5, "cuda": 5e-6}
_SOFTWARE_VULKAN_LAUNCH = 5e-5
"""Seconds of a node's launch on a Vulkan driver that runs on the CPU: fitted to ten networks on lavapipe."""
_FLOPS = {"discrete": 4e12, "integrated": 5e11, "cpu": 1e11, "other": 5e11}
_BANDWIDTH = {"discrete": 2e11, "integrated": 3e10, "cpu": 2e10, "other": 3e10}
"""Defaults for devices that state no figures: those of a small GPU of the same kind."""


def placement_device(device: TargetDevice) -> PlacementDevice:
    """The device for placement, with default figures of its kind for those that it does not state."""
    return PlacementDevice(
        name=device.name,
        kind=device.backend,
        memory=device.memory,
        flops=(device.flops or _FLOPS[device.unit]) * (ORT_FLOPS if device.backend == "ort" else 1.0),
        bandwidth=device.bandwidth or _BANDWIDTH[device.unit],
        launch=_launch(device),
        overhead=ORT_OVERHEAD if device.backend == "ort" else 0.0,
        last_resort=device.last_resort,
        rules=device.partitions,
    )


def _launch(device: TargetDevice) -> float:
    return _SOFTWARE_VULKAN_LAUNCH if device.software and device.backend == "vulkan" else _LAUNCH[device.backend]


def link_between(source: TargetDevice, target: TargetDevice, measured: Mapping[str, Link] | None = None) -> Link:
    """The cost of a transfer: as stated by either device, else by kind; between two GPUs it is by way of the host.

    `measured` are links to the host by device, which take the place of those by kind.
    """
    if target.name in source.links:
        return source.links[target.name]
    if source.name in target.links:
        return target.links[source.name]
    accelerators = [d for d in (source, target) if d.backend not in ("cpu", "ort")]
    if not accelerators:
        return HOST_LINK
    legs = [(measured or {}).get(d.name) or _by_kind(d) for d in accelerators]
    latency = sum(leg.latency for leg in legs)
    return Link(latency, 1 / sum(1 / leg.bandwidth for leg in legs))


def _by_kind(device: TargetDevice) -> Link:
    return DISCRETE_LINK if device.unit in ("discrete", "other") and not device.software else SHARED_LINK


def build_machine(
    model: ImportedModel,
    devices: tuple[TargetDevice, ...],
    refusals: Mapping[str, Mapping[str, str]],
    seconds: Mapping[str, Mapping[str, float]] | None = None,
    host_links: Mapping[str, Link] | None = None,
) -> Machine:
    """The machine for placement: devices in order, the work of every node, links, and refusals.

    `refusals[device][node]` is the reason why a device cannot run a node; entries of other devices are left out.
    `seconds[device][node]` are measured times, and `host_links[device]` measured links to the host.
    """
    values = model.graph.values
    by_name = model.graph.node_by_name
    work = {p.name: node_flops(p, by_name[p.name], values) for p in model.proto.graph.node if p.name in by_name}
    links = {(a.name, b.name): link_between(a, b, host_links) for a in devices for b in devices if a is not b}
    refused = {d.name: refusals[d.name] for d in devices}
    timed = {d.name: (seconds or {}).get(d.name, {}) for d in devices}
    return Machine(tuple(placement_device(d) for d in devices), refused, work, links, seconds=timed)
