"""Times of partitions, kernels and transfers, as records and as a table like that of OpenVINO's `benchmark_app -pc`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from heterocc.artifacts.manifest import Kernel, Variant
from heterocc.runtime.plan.schedule import HOST, Copy, Schedule, Space, Step, Wait
from heterocc.runtime.profile.recorder import Cell, Recorder
from heterocc.runtime.profile.timestamps import Timestamps

Kind = Literal["partition", "kernel", "transfer", "node"]
Clock = Literal["host", "device"]


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """One line of a profile. Times are milliseconds per run, averaged over `runs`.

    `median_ms` is the median of `real_ms` over the runs that are known one by one, which one disturbed run does not
    change; None if there is none, or if the number of calls differs from run to run.

    `kind` "partition" covers its kernels and what the VM does between them; "kernel" is one compiled function and the
    `nodes` it computes; "transfer" one value sent between memories; "node" a node without a known kernel, which
    therefore has no time (`status` NOT_RUN: folded, fused under another name, or run inside ONNX Runtime). A transfer
    is NOT_RUN if both devices use the same memory.

    `clock` is the clock of `real_ms`. "host": wall-clock time until the device finished, including the launch.
    "device": the kernel's time on the device, by the device's timestamps; time between kernels counts only for the
    partition. `cpu_ms` is wall-clock time until the call returned on the host. On the CPU it equals `real_ms`; for
    other devices it is the time of the launch.
    """

    kind: Kind
    name: str
    status: Literal["EXECUTED", "NOT_RUN"]
    layer_type: str
    real_ms: float
    cpu_ms: float
    exec_type: str
    device: str
    partition: str
    nodes: tuple[str, ...] = ()
    calls: float = 0.0
    clock: Clock = "host"
    median_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ProfileEvent:
    """A partition, kernel or transfer of one run: nanoseconds from the first event, on the thread that made the call.

    With the clock "device", the duration is the device's; the beginning is the launch, or the end of the kernel before.
    """

    record: ProfileRecord
    begin: int
    end: int
    thread: int


@dataclass(frozen=True, slots=True)
class Profile:
    """The times of a session over `runs` runs, in run order; `notes` explain limits of the measurement.

    `events` has the runs one by one, as many as there is room for; `timeline.chrome_trace` writes them to a file.
    """

    records: tuple[ProfileRecord, ...]
    runs: int
    notes: tuple[str, ...] = ()
    events: tuple[ProfileEvent, ...] = ()

    def __repr__(self) -> str:
        return f"<Profile: {self.total_ms:.3f} ms per run, {self._runs()}, {len(self.records)} records>"

    def _runs(self) -> str:
        return f"{self.runs} run{'s' * (self.runs != 1)}"

    @property
    def total_ms(self) -> float:
        """The time of all partitions and transfers per run, in milliseconds."""
        return sum(r.real_ms for r in self.records if r.kind in ("partition", "transfer"))

    def of(self, kind: Kind) -> tuple[ProfileRecord, ...]:
        """The records of one kind."""
        return tuple(r for r in self.records if r.kind == kind)

    def to_json(self) -> dict[str, Any]:
        """The profile in the form of `--json`."""
        names = ProfileRecord.__slots__
        return {
            "runs": self.runs,
            "total_ms": self.total_ms,
            "notes": list(self.notes),
            "records": [{n: getattr(r, n) for n in names} for r in self.records],
        }

    def to_table(self, *, width: int = 48) -> str:
        """A table: a line per kernel, transfer and node that was not run, then per partition, the totals and the notes.

        `width` is that of the first column; longer names end in "…".
        """
        header = ("layerName", "execStatus", "layerType", "realTime (ms)", "cpuTime (ms)", "execType")
        rows = [_row(r) for r in self.records if r.kind != "partition"]
        sums = [_row(r) for r in self.records if r.kind == "partition"]
        total = ("Total", "", self._runs(), f"{self.total_ms:.3f}", f"{self._cpu_ms():.3f}", "")
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join((*_layout([header, *rows, None, *sums, None, total], width), *notes)) + "\n"

    def _cpu_ms(self) -> float:
        return sum(r.cpu_ms for r in self.records if r.kind in ("partition", "transfer"))

    def __str__(self) -> str:
        return self.to_table()


def _row(record: ProfileRecord) -> tuple[str, ...]:
    return (
        record.name,
        record.status,
        record.layer_type,
        f"{record.real_ms:.3f}",
        f"{record.cpu_ms:.3f}",
        record.exec_type,
    )


def _layout(rows: Sequence[tuple[str, ...] | None], width: int) -> Iterable[str]:
    cells = [r if r is None else (_shorten(r[0], width), r[1], _shorten(r[2], 28), *r[3:]) for r in rows]
    widths = [max(len(r[i]) for r in cells if r is not None) for i in range(6)]
    for row in cells:
        if row is None:
            yield "-" * (sum(widths) + 10)
            continue
        parts = [t.rjust(w) if i in (3, 4) else t.ljust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True))]
        yield "  ".join(parts).rstrip()


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _saved_transfers(variant: Variant, plan: Schedule) -> dict[int, list[tuple[int, Space, Space]]]:
    """By partition, the values read from another device without a transfer, because the two share memory."""
    places: dict[int, list[Space]] = {value: [HOST] for value in variant.inputs}
    found: dict[int, list[tuple[int, Space, Space]]] = {}
    for index, (part, space) in enumerate(zip(variant.partitions, plan.spaces, strict=True)):
        for value in part.inputs:
            held = places.get(value)
            if (
                held
                and space not in held
                and {space, held[0]} & plan.shared
                and {space, held[0]} <= {HOST, *plan.shared}
            ):
                found.setdefault(index, []).append((value, held[0], space))
                held.append(space)
        places.update((value, [space]) for value in part.outputs)
    return found


def _medians(recorders: Sequence[Recorder]) -> dict[Step | tuple[int, str], float]:
    """The median milliseconds per run of each step and kernel that has the same number of calls in each run."""
    found: defaultdict[Step | tuple[int, str], list[int]] = defaultdict(list)
    for recorder in recorders:
        known: defaultdict[Step | tuple[int, str], list[int]] = defaultdict(list)
        for interval in tuple(recorder.intervals):
            known[interval.what].append(interval.end - interval.begin)
        for what, times in known.items():
            cell = recorder.kernels.get(what) if isinstance(what, tuple) else recorder.steps.get(what)
            calls, rest = divmod(0 if cell is None else cell.calls, max(1, recorder.runs))
            if calls and not rest:
                runs = range(0, len(times) - calls + 1, calls)
                found[what].extend(sum(times[first : first + calls]) for first in runs)
    return {what: median(times) / 1e6 for what, times in found.items() if times}


def build_profile(variant: Variant, plan: Schedule, recorders: Sequence[Recorder], timestamps: Timestamps) -> Profile:
    """Merge the records of all contexts into averages per run."""
    runs = sum(r.runs for r in recorders)
    per_run = 1e-6 / max(1, runs)

    def merged(cells: Iterable[Cell | None]) -> Cell:
        total = Cell()
        for cell in cells:
            if cell is not None:
                total.real, total.cpu, total.calls = (
                    total.real + cell.real,
                    total.cpu + cell.cpu,
                    total.calls + cell.calls,
                )
        return total

    records: list[ProfileRecord] = []
    of_interval: dict[Step | tuple[int, str], ProfileRecord] = {}

    def add(
        kind: Kind, cell: Cell, name: str, layer: str, exec_type: str, device: str, part: str, nodes: tuple[str, ...],
        clock: Clock = "host", what: Step | tuple[int, str] | None = None,
    ) -> None:  # fmt: skip
        status: Literal["EXECUTED", "NOT_RUN"] = "EXECUTED" if cell.calls else "NOT_RUN"
        records.append(
            ProfileRecord(kind, name, status, layer, cell.real * per_run, cell.cpu * per_run, exec_type, device, part,
                          nodes, cell.calls / max(1, runs), clock, None if what is None else medians.get(what))
        )  # fmt: skip
        if what is not None:
            of_interval[what] = records[-1]

    medians = _medians(recorders)
    saved = _saved_transfers(variant, plan)
    for step in plan.steps:
        if isinstance(step, Wait):
            continue
        cell = merged(r.steps.get(step) for r in recorders)
        if isinstance(step, Copy):
            name, route = variant.values[step.value].name, f"{step.source} -> {step.target}"
            beside = ", ".join(variant.partitions[p].name for p in plan.beside(step))
            route += f" (overlaps {beside})" if beside else ""
            add("transfer", cell, name, "Transfer", route, str(step.carrier), "", (), what=step)
            continue
        index, part = step.partition, variant.partitions[step.partition]
        device = variant.devices[part.device]
        for value, source, target in saved.get(index, ()):
            route = f"{source} -> {target} (same memory)"
            place = str(target if target != HOST else source)
            add("transfer", Cell(), variant.values[value].name, "Transfer", route, place, "", ())
        add("partition", cell, part.name, f"Partition ({len(part.nodes)} nodes)", f"{device.name} {part.kind}",
            device.name, part.name, part.nodes, what=step)  # fmt: skip
        clock: Clock = "host" if timestamps.clock(plan.spaces[index]) is None else "device"
        known = {k.symbol: k for k in part.kernels}
        seen = dict.fromkeys(k for r in recorders for p, k in tuple(r.kernels) if p == index)
        for symbol in dict.fromkeys([*known, *seen]):
            kernel = known.get(symbol, Kernel(symbol=symbol, nodes=()))
            name = " + ".join(kernel.nodes) or symbol
            layer = "+".join(kernel.op_types) or "Kernel"
            cell = merged(r.kernels.get((index, symbol)) for r in recorders)
            add("kernel", cell, name, layer, f"{device.name} {symbol}", device.name, part.name, kernel.nodes,
                clock, (index, symbol))  # fmt: skip
        covered = {n for k in part.kernels for n in k.nodes}
        inside = "inside ONNX Runtime" if part.kind == "onnx" else "no separate kernel"
        for node in part.nodes:
            if node not in covered:
                add("node", Cell(), node, "", f"{device.name} {inside}", device.name, part.name, (node,))
    untimed = sum(r.untimed for r in recorders)
    notes = (f"the driver reported no time for {untimed} kernel runs; they count as 0 ms",) if untimed else ()
    intervals = sorted((i for r in recorders for i in tuple(r.intervals)), key=lambda i: (i.begin, -i.end))
    first = intervals[0].begin if intervals else 0
    events = [
        ProfileEvent(of_interval[i.what], i.begin - first, i.end - first, i.thread)
        for i in intervals
        if i.what in of_interval
    ]
    return Profile(tuple(records), runs, (*timestamps.notes, *notes), tuple(events))
