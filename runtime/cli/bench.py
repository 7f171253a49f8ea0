"""Time a session: latency percentiles and throughput, optionally interleaved with ONNX Runtime in the same run."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterocc.artifacts.errors import FileMissingError, NotOnnxError, UsageError
from heterocc.artifacts.files.filetype import HEAD, ONNX, file_kind, is_file
from heterocc.runtime.cli.timing import FEW, SHARES, BenchResult, Start, Timing, is_known
from heterocc.runtime.select.request import parse_request

_IDLE_STEP = 0.005
"""Seconds in which the processor time of idle threads is measured."""

_IDLE_SHARE = 0.2
"""The share of a core below which a process counts as idle."""

LEAST_SECONDS = 0.25
"""Seconds of measurement for each runner before its median can count as known: threads take a while to settle."""

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


@dataclass(frozen=True, slots=True)
class Measure:
    """How a measurement is made.

    It ends after `seconds`, or after `iterations` runs of each runner, or when the median of each is known to
    `stable` percent (`Timing.uncertainty`), whatever comes first. `requests` None is the default of the session.
    `shares` are the percentiles to show.
    """

    seconds: float = 5.0
    iterations: int | None = None
    requests: int | None = None
    warmup: int = 3
    stable: float | None = None
    shares: tuple[float, ...] = SHARES


def request_count(session: Any, asked: int | None, hint: str | None, devices: str | None) -> int:
    """The number of requests at a time: the caller's, or that of the session if throughput is measured, or one."""
    if asked is not None:
        return asked
    return int(session.requests) if hint == "throughput" or parse_request(devices).is_multi else 1


def bench(
    session: Any,
    feed: Mapping[str, Any],
    measure: Measure,
    *,
    requests: int,
    against: Sequence[Peer] = (),
    threads: int | None = None,
    load_seconds: float = 0.0,
    ended: Callable[[], bool] = lambda: False,
) -> BenchResult:
    """Time `session.run(feed)`.

    One request: runs one after another; with `against`, a few runs of each runner in turn, so that both see the same
    machine load. Several requests: that many threads share the session. `ended` is asked after each run.
    """
    if against and requests > 1:
        raise UsageError("--against runs one request at a time", where="--requests")
    runners: list[tuple[str, Callable[[], object]]] = [("heterocc", lambda: session.run(feed))]
    before = time.perf_counter()
    session.run(feed)
    start = Start(load_seconds, time.perf_counter() - before, peak_memory())
    runners += [(peer.name, peer.runner(peer.model, feed, threads)) for peer in against]
    for name, run in runners:
        for _ in range(measure.warmup - (name == "heterocc")):
            run()
    timings: tuple[Timing, ...]
    if requests > 1:
        timings = (_parallel(runners[0][1], measure, requests, ended),)
    else:
        timings = interleave(runners, measure.seconds, measure.iterations, stable=measure.stable, ended=ended)
    return BenchResult(
        timings, requests, session.devices, session.threads, start, interrupted=ended(), shares=measure.shares
    )


def peak_memory() -> int | None:
    """The most memory in bytes that this process has had resident; None where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) << 10
    except (OSError, StopIteration, ValueError):
        return None


def forget_peak_memory() -> None:
    """Let `peak_memory` count from here on, if the system can: before that a model may have been compiled."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def interleave(
    runners: list[tuple[str, Callable[[], object]]],
    seconds: float,
    iterations: int | None,
    *,
    stable: float | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> tuple[Timing, ...]:
    """Run each runner a few times in turn until `seconds` are over, or until each has run `iterations` times.

    A turn starts when the threads of the turn before it have stopped looking for work. `stable` ends the measurement
    when each median is known to so many percent, after LEAST_SECONDS for each runner at the earliest; `ended` ends it
    after any run, once each runner has run.
    """
    times: list[list[float]] = [[] for _ in runners]
    start = time.perf_counter()
    turn = 5 if len(runners) > 1 else 1
    look = FEW
    while not (times[-1] and ended()):
        done = len(times[0])
        if (iterations is not None and done >= iterations) or (
            iterations is None and done and time.perf_counter() - start >= seconds
        ):
            break
        if stable is not None and done >= look and time.perf_counter() - start >= LEAST_SECONDS * len(runners):
            if all(is_known(t, stable) for t in times):
                break
            look = done + done // 4
        for index, (_, run) in enumerate(runners):
            if len(runners) > 1:
                wait_until_idle()
                run()  # the first run of a turn warms the caches that the other runner used
            for _ in range(turn if iterations is None else min(turn, iterations - done)):
                before = time.perf_counter()
                run()
                times[index].append(time.perf_counter() - before)
                if ended():
                    break
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


def _parallel(run: Callable[[], object], measure: Measure, requests: int, ended: Callable[[], bool]) -> Timing:
    iterations = measure.iterations
    known = threading.Event()
    times: list[list[float]] = [[] for _ in range(requests)]
    failures: list[BaseException] = []
    gate = threading.Barrier(requests + 1)
    share = (
        None if iterations is None else [iterations // requests + (i < iterations % requests) for i in range(requests)]
    )

    def work(index: int) -> None:
        gate.wait()
        deadline = time.perf_counter() + measure.seconds
        try:
            while (time.perf_counter() < deadline if share is None else len(times[index]) < share[index]) and not (
                failures or ((ended() or known.is_set()) and times[index])
            ):
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
    wait = LEAST_SECONDS
    while measure.stable is not None and not known.is_set():
        workers[0].join(wait)
        if not workers[0].is_alive():
            break
        if all(is_known(tuple(t), measure.stable) for t in times):
            known.set()
        wait = (time.perf_counter() - start) / 4
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

    if not is_file(path):
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
