"""Time a session: latency percentiles and throughput, optionally interleaved with ONNX Runtime in the same run."""

from __future__ import annotations

import csv
import io
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.errors import FileMissingError, NotOnnxError, UsageError
from heterocc.artifacts.files.filetype import HEAD, ONNX, file_kind
from heterocc.runtime.cli.table import TextTable
from heterocc.runtime.select.select import is_multi

PERCENTILES = (("min", 0.0), ("median", 50.0), ("p90", 90.0), ("p99", 99.0), ("max", 100.0))

_IDLE_STEP = 0.005
"""Seconds in which the processor time of idle threads is measured."""

_IDLE_SHARE = 0.2
"""The share of a core below which a process counts as idle."""

_LONGEST_WAIT = 0.25
"""Seconds of waiting for threads of the turn before, which may never stop."""


Runner = Callable[[Path, Mapping[str, Any], int | None], Callable[[], object]]
"""Makes a function that runs a model on a feed, with this many threads or as many as there are cores."""


@dataclass(frozen=True)
class Peer:
    """Another program that runs the original model."""

    name: str
    model: Path
    runner: Runner


@dataclass(frozen=True)
class Timing:
    """Times of one runner: `latencies` in seconds per run, and `wall`, the seconds of all runs together."""

    name: str
    latencies: tuple[float, ...]
    wall: float

    def __repr__(self) -> str:
        """One short line; `latencies` holds every run."""
        return f"<Timing {self.name}: {len(self.latencies)} runs, median {self.percentile(50):.3f} ms>"

    def percentile(self, q: float) -> float:
        """Latency in milliseconds below which `q` percent of the runs lie."""
        return float(np.percentile(self.latencies, q)) * 1e3

    @property
    def throughput(self) -> float:
        """Runs per second."""
        return len(self.latencies) / self.wall if self.wall else 0.0

    def to_json(self) -> dict[str, object]:
        """As `--json` prints it; times in milliseconds."""
        times = {name: round(self.percentile(q), 4) for name, q in PERCENTILES}
        return {
            "name": self.name,
            "runs": len(self.latencies),
            "latency_ms": times,
            "throughput": round(self.throughput, 3),
        }


@dataclass(frozen=True)
class BenchResult:
    """Timings of a bundle and, if requested, of its peers in the same run.

    `requests` ran at the same time, on `devices`, with `threads` CPU threads each.
    """

    timings: tuple[Timing, ...]
    requests: int
    devices: tuple[str, ...] = ()
    threads: int | None = None

    @property
    def ratio(self) -> float | None:
        """Our median latency over the first peer's; below 1 is faster."""
        return next((found["median"] for found in self.ratios.values()), None)

    @property
    def ratios(self) -> dict[str, dict[str, float]]:
        """Our least and median latency over those of each peer; below 1 is faster."""
        ours, *peers = self.timings
        names = [(name, q) for name, q in PERCENTILES if name in ("min", "median")]
        return {
            peer.name: {name: ours.percentile(q) / peer.percentile(q) for name, q in names if peer.percentile(q)}
            for peer in peers
        }

    def to_json(self) -> dict[str, object]:
        """As `--json` prints it."""
        return {
            "devices": list(self.devices),
            "threads": self.threads,
            "requests": self.requests,
            "results": [t.to_json() for t in self.timings],
            "median_ratio": None if self.ratio is None else round(self.ratio, 4),
            "ratios": {peer: {k: round(v, 4) for k, v in found.items()} for peer, found in self.ratios.items()},
        }

    def to_csv(self) -> str:
        """As `--csv` prints it: a line of names, and a line for each runner; times in milliseconds."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(
            ["name", "devices", "threads", "requests", "runs", *(f"{n}_ms" for n, _ in PERCENTILES), "runs_per_second"]
        )
        for timing in self.timings:
            times = [f"{timing.percentile(q):.4f}" for _, q in PERCENTILES]
            runs, rate = len(timing.latencies), f"{timing.throughput:.3f}"
            table.writerow([timing.name, ",".join(self.devices), self.threads, self.requests, runs, *times, rate])
        return text.getvalue()

    def describe(self) -> str:
        """The conditions of the measurement in one line."""
        several = self.requests != 1
        return (
            f"{self.requests} request{'s' * several} at a time on {','.join(self.devices)}, "
            f"{self.threads} CPU thread{'s' * (self.threads != 1)}{' each' * several}"
        )


def request_count(session: Any, asked: int | None, hint: str | None, devices: str | None) -> int:
    """The number of requests at a time: the caller's, or that of the session if throughput is measured, or one."""
    if asked is not None:
        return asked
    return int(session.requests) if hint == "throughput" or is_multi(devices) else 1


def bench_table(result: BenchResult) -> TextTable:
    """Latencies and throughput of each runner, and our times over those of each peer."""
    titles = ("", "runs", *(f"{name} ms" for name, _ in PERCENTILES), "runs/s")
    rows: list[tuple[str, ...]] = []
    for timing in result.timings:
        cells = [f"{timing.percentile(q):.3f}" for _, q in PERCENTILES]
        rows.append((timing.name, str(len(timing.latencies)), *cells, f"{timing.throughput:.1f}"))
    for peer, ratios in result.ratios.items():
        cells = [f"{ratios[name]:.2f}" if name in ratios else "" for name, _ in PERCENTILES]
        rows.append((f"ratio to {peer}", "", *cells, ""))
    return TextTable(titles, tuple(rows), frozenset(range(1, len(titles))))


def bench(
    session: Any,
    feed: Mapping[str, Any],
    *,
    seconds: float,
    iterations: int | None,
    requests: int,
    warmup: int,
    against: Sequence[Peer] = (),
    threads: int | None = None,
) -> BenchResult:
    """Time `session.run(feed)`.

    One request: runs one after another; with `against`, a few runs of each runner in turn, so that both see the same
    machine load. Several requests: that many threads share the session.
    """
    runners: list[tuple[str, Callable[[], object]]] = [("heterocc", lambda: session.run(feed))]
    if against and requests > 1:
        raise UsageError("--against runs one request at a time", where="--requests")
    runners += [(peer.name, peer.runner(peer.model, feed, threads)) for peer in against]
    for _, run in runners:
        for _ in range(warmup):
            run()
    timings: tuple[Timing, ...]
    if requests > 1:
        timings = (_parallel(runners[0][1], seconds, iterations, requests),)
    else:
        timings = interleave(runners, seconds, iterations)
    return BenchResult(timings, requests, session.devices, session.threads)


def interleave(
    runners: list[tuple[str, Callable[[], object]]], seconds: float, iterations: int | None
) -> tuple[Timing, ...]:
    """Run each runner a few times in turn until `seconds` are over, or until each has run `iterations` times.

    A turn starts when the threads of the turn before it have stopped looking for work.
    """
    times: list[list[float]] = [[] for _ in runners]
    start = time.perf_counter()
    turn = 5 if len(runners) > 1 else 1
    while True:
        done = len(times[0])
        if (iterations is not None and done >= iterations) or (
            iterations is None and done and time.perf_counter() - start >= seconds
        ):
            break
        for index, (_, run) in enumerate(runners):
            if len(runners) > 1:
                wait_until_idle()
                run()  # the first run of a turn warms the caches that the other runner used
            for _ in range(turn if iterations is None else min(turn, iterations - done)):
                before = time.perf_counter()
                run()
                times[index].append(time.perf_counter() - before)
    return tuple(Timing(name, tuple(t), sum(t)) for (name, _), t in zip(runners, times, strict=True))


def wait_until_idle(
    used: Callable[[], float] = time.process_time,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Sleep until this process uses less than a fifth of a core, for a quarter of a second at most.

    Threads of ONNX Runtime keep a core each for 50 ms after a run: the next runner would have the others only. `used`
    gives the process's seconds of processor time, `clock` seconds of time.
    """
    start = clock()
    while True:
        before, spent = clock(), used()
        sleep(_IDLE_STEP)
        now = clock()
        if used() - spent < _IDLE_SHARE * (now - before) or now - start >= _LONGEST_WAIT:
            return


def _parallel(run: Callable[[], object], seconds: float, iterations: int | None, requests: int) -> Timing:
    times: list[list[float]] = [[] for _ in range(requests)]
    failures: list[BaseException] = []
    gate = threading.Barrier(requests + 1)
    share = (
        None if iterations is None else [iterations // requests + (i < iterations % requests) for i in range(requests)]
    )

    def work(index: int) -> None:
        gate.wait()
        deadline = time.perf_counter() + seconds
        try:
            while (
                time.perf_counter() < deadline if share is None else len(times[index]) < share[index]
            ) and not failures:
                before = time.perf_counter()
                run()
                times[index].append(time.perf_counter() - before)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(requests)]
    for worker in workers:
        worker.start()
    gate.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    wall = time.perf_counter() - start
    if failures:
        raise failures[0]
    return Timing("heterocc", tuple(t for part in times for t in part), wall)


def onnxruntime_runner(path: Path, feed: Mapping[str, Any], threads: int | None) -> Callable[[], object]:
    """A function that runs the original model in ONNX Runtime, by default on all cores of the process.

    Raises FileMissingError (HC101) or NotOnnxError (HC102).
    """
    from heterocc.runtime.execute.ort_session import open_session, session_options

    if not path.is_file():
        raise FileMissingError("the model does not exist", where=str(path))
    with path.open("rb") as stream:
        kind = file_kind(stream.read(HEAD))
    if kind not in (None, ONNX):
        raise NotOnnxError(f"the file is {kind}, not an ONNX model", where=str(path), hint="name the .onnx file")
    options = session_options(threads=threads or len(os.sched_getaffinity(0)), exact=False)
    try:
        session = open_session(str(path), options)
    except Exception as error:
        raise NotOnnxError(f"ONNX Runtime cannot load it: {str(error).splitlines()[0]}", where=str(path)) from error
    known = {i.name for i in session.get_inputs()}
    arguments = {name: value for name, value in feed.items() if name in known}
    return lambda: session.run(None, arguments)
