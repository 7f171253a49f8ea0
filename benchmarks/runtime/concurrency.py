"""Callers that compete for the cores, and a busy neighbour, beside ONNX Runtime, in turns within one process.

Usage: python benchmarks/runtime/concurrency.py [--callers 8] [--rounds 12] [--bundle FILE] [NAME …]
NAME is as in benchmarks/networks/cpu.py; the default is squeezenet. `--bundle` names the bundle of the only model, to
save the compile. Prints a table and writes benchmarks/results/concurrency.json.

Cases, each with as many threads as the process may use cores unless it says otherwise:

    one session    every caller is a thread and runs the same session
    session each   every caller is a thread with a session of its own
    throughput     every caller is a thread and runs the same session of one thread (`threads=1`)
    neighbour      one caller, while another process spins on one core

A round is the time from the start of all callers to the end of the last; `slowest` is the longest single request. The
ratio is ONNX Runtime's time over ours: above 1 is faster. For the neighbour the slowdown, time beside it over time
alone, is compared as well. Between rounds the process comes to rest, so that the spinning of one runner's idle threads
is not counted against the other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.networks.cpu import locate  # noqa: E402
from heterocc.artifacts.reader import open_bundle  # noqa: E402
from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import load  # noqa: E402
from heterocc.runtime.cli.bench import onnxruntime_runner  # noqa: E402

Run = Callable[[], object]


@dataclass(slots=True)
class Times:
    """Milliseconds of each round, and of the slowest request in it."""

    rounds: list[float] = field(default_factory=list)
    slowest: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Least and median."""
        return {
            "min": min(self.rounds),
            "median": statistics.median(self.rounds),
            "slowest": statistics.median(self.slowest),
        }


class Callers:
    """Threads that each run a function some times, again and again, all starting at the same moment."""

    def __init__(self, runs: Sequence[Run], requests: int) -> None:
        self._gate = threading.Barrier(len(runs) + 1)
        self._requests = requests
        self._ended = [0.0] * len(runs)
        self._longest = [0.0] * len(runs)
        self._stop = False
        self._threads = [threading.Thread(target=self._work, args=(i, run)) for i, run in enumerate(runs)]
        for thread in self._threads:
            thread.start()

    def round(self) -> tuple[float, float]:
        """Milliseconds of a round and of its slowest request."""
        start = time.perf_counter()
        self._gate.wait()
        self._gate.wait()
        return (max(self._ended) - start) * 1e3, max(self._longest) * 1e3

    def close(self) -> None:
        """End the threads."""
        self._stop = True
        self._gate.wait()
        for thread in self._threads:
            thread.join()

    def _work(self, index: int, run: Run) -> None:
        while True:
            self._gate.wait()
            if self._stop:
                return
            longest = 0.0
            for _ in range(self._requests):
                before = time.perf_counter()
                run()
                longest = max(longest, time.perf_counter() - before)
            self._ended[index], self._longest[index] = time.perf_counter(), longest
            self._gate.wait()


def in_turns(runners: dict[str, Sequence[Run]], requests: int, rounds: int) -> dict[str, Times]:
    """Rounds of each runner in turn; the first is not counted."""
    times = {name: Times() for name in runners}
    with ExitStack() as stack:
        callers = {name: Callers(runs, requests) for name, runs in runners.items()}
        for each in callers.values():
            stack.callback(each.close)
        for number in range(rounds + 1):
            for name, each in callers.items():
                took, slowest = each.round()
                if number:
                    times[name].rounds.append(took)
                    times[name].slowest.append(slowest)
                rest()
    return times


def rest() -> None:
    """Wait until no thread of this process runs; at most a second."""
    for _ in range(50):
        before = time.process_time()
        time.sleep(0.02)
        if time.process_time() - before < 0.002:
            return


@contextmanager
def spinning_neighbour() -> Iterator[None]:
    """A process that keeps one core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    time.sleep(0.2)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Model:
    """A model with runners of both kinds."""

    def __init__(self, model: Path, bundle: Path) -> None:
        self._model, self._bundle = model, bundle
        self.cores = len(os.sched_getaffinity(0))
        with open_bundle(bundle) as opened:
            golden = opened.manifest.golden
            assert golden is not None, "the bundle has no golden vectors"
            self._feed = {n: opened.array(member).copy() for n, member in golden.inputs.items()}

    def runners(self, callers: int, threads: int, *, shared: bool, stack: ExitStack) -> dict[str, Sequence[Run]]:
        """By name, a function for each caller; each has run once."""
        made: dict[str, Sequence[Run]] = {}
        for name, make in (("heterocc", self._ours(threads, stack)), ("onnxruntime", self._peer(threads))):
            made[name] = [make()] * callers if shared else [make() for _ in range(callers)]
            for run in made[name]:
                run()
        return made

    def _ours(self, threads: int, stack: ExitStack) -> Callable[[], Run]:
        def make() -> Run:
            session = stack.enter_context(load(self._bundle, threads=threads))
            return lambda: session.run(self._feed)

        return make

    def _peer(self, threads: int) -> Callable[[], Run]:
        return lambda: onnxruntime_runner(self._model, self._feed, threads)


def measure(model: Model, callers: int, rounds: int) -> list[dict[str, Any]]:
    """All cases of a model."""
    rows = []
    for case, shared, threads in (
        ("one session", True, model.cores),
        ("session each", False, model.cores),
        ("throughput", True, 1),
    ):
        with ExitStack() as stack:
            runners = model.runners(callers, threads, shared=shared, stack=stack)
            rows.append(row_of(case, in_turns(runners, 4, rounds)))
    with ExitStack() as stack:
        runners = model.runners(1, model.cores, shared=True, stack=stack)
        alone = in_turns(runners, 8, rounds)
        with spinning_neighbour():
            beside = in_turns(runners, 8, rounds)
    row = row_of("neighbour", beside)
    for figure in ("min", "median"):
        slowdown = {n: beside[n].summary()[figure] / alone[n].summary()[figure] for n in beside}
        row[f"slowdown_{figure}"] = slowdown
    return [*rows, row]


def row_of(case: str, times: dict[str, Times]) -> dict[str, Any]:
    """The figures of one case."""
    ms = {name: t.summary() for name, t in times.items()}
    ratios = {f"ratio_{f}": ms["onnxruntime"][f] / ms["heterocc"][f] for f in ("min", "median", "slowest")}
    return {"case": case, "ms": ms, **ratios}


def line(name: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    ms = row["ms"]
    cells = [f"{ms[r][f]:>9.2f}" for f in ("min", "median", "slowest") for r in ("heterocc", "onnxruntime")]
    text = f"{name[-24:]:<25}{row['case']:<14}{''.join(cells)}"
    text += "".join(f"{row[f'ratio_{f}']:>7.2f}" for f in ("min", "median", "slowest"))
    if "slowdown_median" in row:
        told = (f"{row[f'slowdown_{f}'][r]:.2f}" for f in ("min", "median") for r in ("heterocc", "onnxruntime"))
        text += "  slowdown min {}, ORT {}; median {}, ORT {}".format(*told)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["squeezenet"])
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "concurrency.json")
    options = parser.parse_args()
    heads = ("ours min", "ORT", "median", "ORT", "slowest", "ORT")
    print(f"{'model':<25}{'case':<14}{''.join(f'{h:>9}' for h in heads)}{'min':>7}{'median':>7}{'slow':>7}")
    rows = []
    for name in options.names:
        with tempfile.TemporaryDirectory() as text:
            path, shapes = locate(name, Path(text))
            bundle = options.bundle or Path(text) / "m.hcb"
            if options.bundle is None:
                compile_model(path, bundle, devices="CPU", shapes=shapes)
            for row in measure(Model(path, bundle), options.callers, options.rounds):
                rows.append({"model": name, **row})
                print(line(Path(name).stem, row), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    head = {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "callers": options.callers}
    options.out.write_text(json.dumps({**head, "cases": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
