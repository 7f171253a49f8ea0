"""Times of partitions, kernels and transfers, as records and as a table like that of OpenVINO's `benchmark_app -pc`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Literal

from heterocc.artifacts.manifest import Kernel, Variant
from heterocc.runtime.executable import Instrument, synchronizer
from heterocc.runtime.schedule import HOST, Copy, Schedule, Space, Step, Wait

Kind = Literal["partition", "kernel", "transfer", "node"]


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """One line of a profile. Times are milliseconds per run, averaged over `runs`.

    `kind` "partition" covers its kernels and what the VM does between them; "kernel" is one compiled function and the
    `nodes` it computes; "transfer" one value sent between memories; "node" a node that no kernel is known for, so that
    it has no time of its own (`status` NOT_RUN: folded, fused under another name, or run inside ONNX Runtime). A
    transfer is NOT_RUN where both devices work in the same memory.

    `real_ms` is wall-clock time until the device was done, `cpu_ms` until the call returned on the host: on the CPU the
    two are one, on other devices the second is the time of launching.
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


@dataclass(frozen=True, slots=True)
class Profile:
    """What a session measured over `runs` runs, in run order."""

    records: tuple[ProfileRecord, ...]
    runs: int

    @property
    def total_ms(self) -> float:
        """Partitions and transfers together, per run."""
        return sum(r.real_ms for r in self.records if r.kind in ("partition", "transfer"))

    def of(self, kind: Kind) -> tuple[ProfileRecord, ...]:
        """The records of one kind."""
        return tuple(r for r in self.records if r.kind == kind)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        names = ProfileRecord.__slots__
        return {
            "runs": self.runs,
            "total_ms": self.total_ms,
            "records": [{n: getattr(r, n) for n in names} for r in self.records],
        }

    def to_table(self, *, width: int = 48) -> str:
        """Text: a line per kernel, transfer and unrun node, then a line per partition and the totals.

        `width` is that of the first column; longer names end in "…".
        """
        header = ("layerName", "execStatus", "layerType", "realTime (ms)", "cpuTime (ms)", "execType")
        rows = [_row(r) for r in self.records if r.kind != "partition"]
        sums = [_row(r) for r in self.records if r.kind == "partition"]
        total = ("Total", "", f"{self.runs} runs", f"{self.total_ms:.3f}", f"{self._cpu_ms():.3f}", "")
        return "\n".join(_layout([header, *rows, None, *sums, None, total], width)) + "\n"

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


@dataclass(slots=True)
class _Cell:
    real: int = 0
    cpu: int = 0
    calls: int = 0

    def add(self, real: int, cpu: int) -> None:
        self.real += real
        self.cpu += cpu
        self.calls += 1


@dataclass(slots=True)
class Recorder:
    """Observes one context; kernels by partition and symbol, steps by step. Times in nanoseconds."""

    plan: Schedule
    runs: int = 0
    kernels: dict[tuple[int, str], _Cell] = field(default_factory=dict)
    steps: dict[Step, _Cell] = field(default_factory=dict)

    def instrument(self, partition: int) -> Instrument:
        """The hook that times the partition's kernels."""
        wait = synchronizer(self.plan.spaces[partition])
        cells = self.kernels
        started: list[int] = []

        def hook(_function: Any, symbol: str, before: bool, _result: Any, *_arguments: Any) -> int:
            if symbol.startswith("vm.builtin."):
                return 0
            if before:
                started.append(perf_counter_ns())
                return 0
            launched = perf_counter_ns()
            if wait is not None:
                wait()
            begin = started.pop()
            cells.setdefault((partition, symbol), _Cell()).add(perf_counter_ns() - begin, launched - begin)
            return 0

        return hook

    def wrap(self, step: Step, action: Callable[[], Any], wait: Callable[[], Any] | None) -> Callable[[], Any]:
        """The action, timed."""
        cell = self.steps.setdefault(step, _Cell())

        def timed() -> None:
            begin = perf_counter_ns()
            action()
            returned = perf_counter_ns()
            if wait is not None:
                wait()
            cell.add(perf_counter_ns() - begin, returned - begin)

        return timed


def _saved_transfers(variant: Variant, plan: Schedule) -> dict[int, list[tuple[int, Space, Space]]]:
    """By partition, the values that it reads across devices without a transfer, because the two share memory."""
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


def build_profile(variant: Variant, plan: Schedule, recorders: Sequence[Recorder]) -> Profile:
    """Merge what the contexts recorded; per-run averages."""
    runs = sum(r.runs for r in recorders)
    per_run = 1e-6 / max(1, runs)

    def merged(cells: Iterable[_Cell | None]) -> _Cell:
        total = _Cell()
        for cell in cells:
            if cell is not None:
                total.real, total.cpu, total.calls = (
                    total.real + cell.real,
                    total.cpu + cell.cpu,
                    total.calls + cell.calls,
                )
        return total

    records: list[ProfileRecord] = []

    def add(
        kind: Kind, cell: _Cell, name: str, layer: str, exec_type: str, device: str, part: str, nodes: tuple[str, ...]
    ) -> None:
        status: Literal["EXECUTED", "NOT_RUN"] = "EXECUTED" if cell.calls else "NOT_RUN"
        records.append(
            ProfileRecord(kind, name, status, layer, cell.real * per_run, cell.cpu * per_run, exec_type, device, part,
                          nodes, cell.calls / max(1, runs))
        )  # fmt: skip

    saved = _saved_transfers(variant, plan)
    for step in plan.steps:
        if isinstance(step, Wait):
            continue
        cell = merged(r.steps.get(step) for r in recorders)
        if isinstance(step, Copy):
            name, route = variant.values[step.value].name, f"{step.source} -> {step.target}"
            beside = ", ".join(variant.partitions[p].name for p in plan.beside(step))
            route += f" (overlaps {beside})" if beside else ""
            add("transfer", cell, name, "Transfer", route, str(step.carrier), "", ())
            continue
        index, part = step.partition, variant.partitions[step.partition]
        device = variant.devices[part.device]
        for value, source, target in saved.get(index, ()):
            route = f"{source} -> {target} (same memory)"
            place = str(target if target != HOST else source)
            add("transfer", _Cell(), variant.values[value].name, "Transfer", route, place, "", ())
        add("partition", cell, part.name, f"Partition ({len(part.nodes)} nodes)", f"{device.name} {part.kind}",
            device.name, part.name, part.nodes)  # fmt: skip
        known = {k.symbol: k for k in part.kernels}
        seen = dict.fromkeys(k for r in recorders for p, k in r.kernels if p == index)
        for symbol in dict.fromkeys([*known, *seen]):
            kernel = known.get(symbol, Kernel(symbol=symbol, nodes=()))
            name = " + ".join(kernel.nodes) or symbol
            layer = "+".join(kernel.op_types) or "Kernel"
            cell = merged(r.kernels.get((index, symbol)) for r in recorders)
            add("kernel", cell, name, layer, f"{device.name} {symbol}", device.name, part.name, kernel.nodes)
        covered = {n for k in part.kernels for n in k.nodes}
        inside = "inside ONNX Runtime" if part.kind == "onnx" else "no kernel of its own"
        for node in part.nodes:
            if node not in covered:
                add("node", _Cell(), node, "", f"{device.name} {inside}", device.name, part.name, (node,))
    return Profile(tuple(records), runs)
