"""Measured times of nodes and links, kept on disk by `heterocc calibrate`, for the costs of later placements."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.files.records import DiskRecords, cache_dir
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.support.trial import Support
from heterocc.passes.cost import Link
from heterocc.passes.graph import Node

KIND = "calibration"

NEEDED = 0.8
"""The share of the nodes that a device can run that must have measured times; else estimates are used for all."""


MAX_NUMBER = 1e15
"""A larger number in a record is damage."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of nodes by device and name, and links from and to the host by device. `notes` are lines for the user."""

    seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    links: Mapping[str, Link] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def open_calibration() -> DiskRecords | None:
    """The records; None without a cache, or if the environment has `HETEROCC_CALIBRATION=off`."""
    root = cache_dir()
    if root is None or os.environ.get("HETEROCC_CALIBRATION", "").lower() == "off":
        return None
    return DiskRecords(root, KIND)


@dataclass
class NodeTimes:
    """Times of the nodes of one model by their signatures, and of links, in the records."""

    model: ImportedModel
    records: DiskRecords

    def __post_init__(self) -> None:
        self._support = Support(self.model)

    def key(self, node: Node, device: TargetDevice) -> str:
        """SHA-256 of the node's signature, the device with its driver and threads, and the toolchain."""
        about = f"{_identity(device)}\n{self._support.key(node, device)}"
        return hashlib.sha256(about.encode()).hexdigest()

    def read(self, node: Node, device: TargetDevice) -> float | None:
        """Seconds of a node; None if it was never timed."""
        return _number(self.records.read(self.key(node, device)), "seconds")

    def write(self, node: Node, device: TargetDevice, seconds: float) -> None:
        """Store the seconds of a node."""
        self.records.write(self.key(node, device), {"seconds": seconds})


def read_link(records: DiskRecords, device: TargetDevice) -> Link | None:
    """The measured link between the host and a device; None if it was never measured."""
    record = records.read(_link_key(device))
    latency, bandwidth = _number(record, "latency"), _number(record, "bandwidth")
    return None if latency is None or not bandwidth else Link(latency, bandwidth)


def write_link(records: DiskRecords, device: TargetDevice, link: Link) -> None:
    """Store the link between the host and a device."""
    records.write(_link_key(device), {"latency": link.latency, "bandwidth": link.bandwidth})


def measured_times(
    model: ImportedModel, devices: Sequence[TargetDevice], refusals: Mapping[str, Mapping[str, object]]
) -> Measured:
    """The stored times for the nodes of a model on these devices.

    They are used only if every device that is not a last resort has times for most nodes that it can run: measured
    times of one device beside estimates of another would favour either. Nodes without a time get their estimate.
    """
    records = open_calibration()
    if records is None or not (records.root / f"{KIND}-v1").is_dir():
        return Measured()
    times = NodeTimes(model, records)
    found: dict[str, dict[str, float]] = {}
    shares: list[tuple[str, int, int]] = []
    for device in devices:
        if device.last_resort:
            continue
        able = [n for n in model.graph.nodes if n.name not in refusals.get(device.name, {})]
        read = {n.name: times.read(n, device) for n in able} if device.present else {}
        found[device.name] = {name: seconds for name, seconds in read.items() if seconds is not None}
        shares.append((device.name, len(found[device.name]), len(able)))
    if not any(known for _, known, _ in shares):
        return Measured()
    lacking = next(((name, known, able) for name, known, able in shares if known < NEEDED * able), None)
    if lacking is not None:
        name, known, total = lacking
        note = f"measured times are not used: {name} has them for {known} of {total} nodes (see `heterocc calibrate`)"
        return Measured(notes=(note,))
    links = {d.name: link for d in devices if d.present and (link := read_link(records, d)) is not None}
    names = ", ".join(name for name, _, _ in shares)
    return Measured(found, links, (f"placement uses measured times of {names} (from `heterocc calibrate`)",))


def _identity(device: TargetDevice) -> str:
    properties = ",".join(f"{k}={v}" for k, v in sorted(device.properties.items()))
    return f"{device.backend}.{device.index} {device.description} {properties} {len(os.sched_getaffinity(0))} cores"


def _link_key(device: TargetDevice) -> str:
    return hashlib.sha256(f"link {_identity(device)}".encode()).hexdigest()


def _number(record: Mapping[str, object] | None, key: str) -> float | None:
    value = (record or {}).get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < MAX_NUMBER else None
