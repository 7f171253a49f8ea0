"""`heterocc calibrate`: times of a model's nodes on each device, and of links, for the costs of later placements.

A node is timed within the code that a compile makes: the model is placed on the device as far as it can run it,
lowered, and profiled, so kernels are fused as they will be. The time of a kernel is divided among its nodes by their
estimates.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import onnx
from onnx import TensorProto, helper

from heterocc.artifacts.errors import HeteroccError, InputError, UsageError
from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.build.build import Builder
from heterocc.compiler.build.pack import pack
from heterocc.compiler.checking.feed import feed_for
from heterocc.compiler.checking.vectors import find_vectors
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.importer.reading.source import AnyModel, as_source
from heterocc.compiler.options import CompileOptions, Options, named_options, with_overrides
from heterocc.compiler.pipeline.compile import query_once
from heterocc.compiler.pipeline.queried import Queried
from heterocc.compiler.pipeline.repair import BuiltVariant, VariantBuilder
from heterocc.compiler.pipeline.timing.turns import undisturbed
from heterocc.compiler.pipeline.variants import MAIN, VariantSpec
from heterocc.compiler.support.calibration import NodeTimes, open_calibration, read_link, write_link
from heterocc.passes.affinity import Affinity
from heterocc.passes.base import parse_pipeline
from heterocc.passes.cost import Link
from heterocc.passes.estimate import node_seconds
from heterocc.runtime import load
from heterocc.runtime.files.inputs import read_inputs
from heterocc.runtime.profile.profile import Profile

PLACED = "greedy,merge{islands=off}"
"""Every node that the device can run is placed on it, in as few partitions as possible."""

WARM, LEAST, BUDGET = 2, 5, 0.5
"""Runs that are not counted, the least runs that are, and their seconds unless these take longer."""

LINK_BYTES = (1 << 12, 1 << 24)
"""The sizes of the two copies from which latency and bandwidth of a link follow."""

LEAST_LATENCY, MOST_BANDWIDTH = 1e-6, 1e13
"""Limits of a measured link: a device that uses the host's memory copies nothing, but one waits for the other."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The result for one device: nodes timed, and how far estimates lie from their times.

    `known` are nodes whose times were stored before, `why_not` is the reason why nothing was timed. `estimated` and
    `measured` are the sums of the timed nodes in seconds, `off` is the median over nodes of the larger of both over the
    smaller.
    """

    device: str
    nodes: int
    known: int
    estimated: float = 0.0
    measured: float = 0.0
    off: float | None = None
    link: Link | None = None
    why_not: str | None = None

    def sentence(self) -> str:
        """The result in one line."""
        if self.why_not is not None:
            return f"{self.device}: not timed: {self.why_not}"
        if not self.nodes:
            return f"{self.device}: the times of all {self.known} nodes were stored before"
        line = f"{self.device}: {self.nodes} nodes timed, {self.measured * 1e3:.3f} ms a run; estimated "
        line += f"{self.estimated * 1e3:.3f} ms"
        if self.off is not None:
            line += f", single nodes off by a factor of {self.off:.1f} (median)"
        if self.link is not None:
            line += f"; link {self.link.latency * 1e6:.1f} us and {self.link.bandwidth / 1e9:.1f} GB/s"
        return line

    def to_json(self) -> dict[str, object]:
        """As `heterocc calibrate --json` prints it."""
        link = (
            None
            if self.link is None
            else {"latency_us": self.link.latency * 1e6, "gb_per_s": self.link.bandwidth / 1e9}
        )
        return {
            "device": self.device,
            "nodes": self.nodes,
            "known": self.known,
            "estimated_us": self.estimated * 1e6,
            "measured_us": self.measured * 1e6,
            "median_factor": self.off,
            "link": link,
            "why_not": self.why_not,
        }


@named_options
def calibrate_model(
    model: AnyModel,
    options: CompileOptions | None = None,
    reporter: Reporter | None = None,
    *,
    again: bool = False,
    **overrides: Unpack[Options],
) -> tuple[Calibrated, ...]:
    """Time the nodes of a model on each listed device, and the links, and store the times for later placements.

    A device whose nodes and link are known is left out, unless `again`; so an interrupted call goes on where it was,
    one device at a time, and compiled kernels are kept too. Raises UsageError (HC120) without a cache, and the errors
    of the import and of resolving devices. A device that fails has the reason in its result.
    """
    options = with_overrides(calibrate_model, options, overrides)
    records = open_calibration()
    if records is None:
        raise UsageError(
            "times cannot be stored: the cache is off",
            where="HETEROCC_CACHE, HETEROCC_CALIBRATION",
            hint="unset them, or set HETEROCC_CACHE to a folder",
        )
    queried = query_once(as_source(model), options, reporter or Reporter(), calibrated=False)
    times = NodeTimes(queried.model, records)
    feed = _feed(queried)
    found = []
    for device in queried.devices:
        if device.last_resort:
            continue
        if not device.present:
            found.append(Calibrated(device.name, 0, 0, why_not="it is not on this machine"))
            continue
        try:
            found.append(_calibrated(queried, device, times, feed, again=again))
        except HeteroccError as error:
            found.append(Calibrated(device.name, 0, 0, why_not=error.message))
    if records.failure is not None:
        queried.reporter.warn(records.failure)
    return tuple(found)


def _feed(queried: Queried) -> dict[str, Any]:
    """Inputs that the model accepts, by their names in it: those of a compile's check, else seeded ones."""
    with queried.reporter.stage("running ONNX Runtime"):
        try:
            found = find_vectors(queried.model, None, queried.request.options.seed).inputs
        except InputError:
            found = feed_for(queried.model, None, queried.request.options.seed)
    return {queried.model.sources.get(name, name): value for name, value in found.items()}


def _calibrated(
    queried: Queried, device: TargetDevice, times: NodeTimes, feed: Mapping[str, Any], *, again: bool
) -> Calibrated:
    link = None if again else read_link(times.records, device)
    if link is None and device.backend != "cpu":
        with queried.reporter.stage(f"timing copies to {device.name}"):
            link = _link(queried, device)
            write_link(times.records, device, link)
    rest = tuple(d for d in queried.devices if d.name != device.name)
    spec = VariantSpec(MAIN, (device, *rest), Affinity("automatic"))
    plan = queried.place(spec, parse_pipeline(PLACED))
    here = [n for n in queried.model.graph.nodes if plan.device_of[n.name] == device.name]
    if not again and all(times.read(n, device) is not None for n in here):
        return Calibrated(device.name, 0, len(here), link=link)
    builder = VariantBuilder(queried, Builder(queried.model, spec.devices, queried.reporter))
    built = builder.build(spec, plan, parse_pipeline(PLACED))
    with queried.reporter.stage(f"timing {device.name}"):
        seconds = _node_seconds(queried, built, device, feed)
    machine = built.report.plan.machine
    estimates = {
        n: node_seconds(queried.model.graph, machine, device.name, queried.model.graph.node_by_name[n]) for n in seconds
    }
    alike: dict[str, list[str]] = {}
    for name in seconds:
        alike.setdefault(times.key(queried.model.graph.node_by_name[name], device), []).append(name)
    for names in alike.values():  # nodes of the same signature share a record
        mean = statistics.fmean(seconds[name] for name in names)
        times.write(queried.model.graph.node_by_name[names[0]], device, mean)
        seconds |= dict.fromkeys(names, mean)
    ratios = [max(e / s, s / e) for n, e in estimates.items() if (s := seconds[n]) > 0 and e > 0]
    return Calibrated(
        device.name,
        len(seconds),
        0,
        sum(estimates.values()),
        sum(seconds.values()),
        statistics.median(ratios) if ratios else None,
        link,
    )


def _node_seconds(
    queried: Queried, built: BuiltVariant, device: TargetDevice, feed: Mapping[str, Any]
) -> dict[str, float]:
    """Seconds of the nodes on the device: kernels by the profile, scaled to what a run without it takes."""
    with scratch_folder("calibration") as folder:
        path = folder / "m.hcb"
        pack(path, queried.model, [built.parts(queried.model)], durable=False)
        with load(path, profile=True) as session:
            profile, run = _profiled(session, feed)
        with load(path) as session:
            whole = _undisturbed(session, feed)
    scale = min(1.0, whole / run) if run > 0 else 1.0
    kernels = {(r.partition, r.exec_type): r.real_ms for r in profile.of("kernel")}
    partitions = {r.name: r.real_ms for r in profile.of("partition")}
    machine = built.report.plan.machine
    found: dict[str, float] = {}
    for piece in built.pieces:
        if piece.job.device.name != device.name:
            continue
        timed = [
            (k.nodes, kernels.get((piece.job.name, f"{device.name} {k.symbol}"), 0.0)) for k in piece.lowered.kernels
        ]
        # Launches and the gaps between kernels count for each kernel alike.
        gap = max(0.0, partitions.get(piece.job.name, 0.0) - sum(ms for _, ms in timed)) / max(1, len(timed))
        found |= dict.fromkeys(piece.job.nodes, 0.0)  # without a kernel: folded, or a view
        for nodes, ms in timed:
            members = [queried.model.graph.node_by_name[n] for n in nodes if n in found]
            shares = [node_seconds(queried.model.graph, machine, device.name, n) for n in members]
            for node, share in zip(members, shares, strict=True):
                found[node.name] += (ms + gap) / 1e3 * scale * share / sum(shares)
    return found


def _profiled(session: Any, feed: Mapping[str, Any]) -> tuple[Profile, float]:
    """The profile of a few runs, and the seconds of a profiled run."""
    for _ in range(WARM):
        session.run(feed)
    session.clear_profile()
    start = time.perf_counter()
    for _ in range(LEAST):
        session.run(feed)
    taken = (time.perf_counter() - start) / LEAST
    return session.profile(), taken


def _undisturbed(session: Any, feed: Any) -> float:
    for _ in range(WARM):
        session.run(feed)
    found: list[float] = []
    start = time.perf_counter()
    while len(found) < LEAST or time.perf_counter() - start < BUDGET:
        before = time.perf_counter()
        session.run(feed)
        found.append(time.perf_counter() - before)
    return undisturbed(found)


def _link(queried: Queried, device: TargetDevice) -> Link:
    """The link to the host and back, from two copies in each direction."""
    small, large = (_copy_seconds(queried, device, size) for size in LINK_BYTES)
    bandwidth = min((LINK_BYTES[1] - LINK_BYTES[0]) / max(large - small, 1e-12), MOST_BANDWIDTH)
    return Link(max(small - LINK_BYTES[0] / bandwidth, LEAST_LATENCY), bandwidth)


def _copy_seconds(queried: Queried, device: TargetDevice, size: int) -> float:
    """Seconds of one copy of that many bytes, the mean of both directions.

    Memory that both use is not copied: then half of what a run takes beside its partition.
    """
    shape = [size // np.dtype(np.float32).itemsize]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="copy")], "copy", ends[:1], ends[1:])
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    own = queried.request.options
    options = CompileOptions((device.name,), device_files=own.device_files, properties=own.properties)
    one = query_once(as_source(proto), options, Reporter(), calibrated=False)
    spec = one.specs[0]
    built = VariantBuilder(one, Builder(one.model, spec.devices, one.reporter)).build(spec, one.place(spec))
    with scratch_folder("calibration") as folder:
        path = folder / "m.hcb"
        pack(path, one.model, [built.parts(one.model)], durable=False)
        with load(path, profile=True) as session:
            profile, run = _profiled(session, read_inputs(path, session, (), 0))
    copies = [r.real_ms / 1e3 for r in profile.of("transfer") if r.status == "EXECUTED"]
    beside = run - sum(r.real_ms for r in profile.of("partition")) / 1e3
    return statistics.fmean(copies) if copies else max(beside / 2, 0.0)
