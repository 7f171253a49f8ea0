"""Eight threads over sessions on CPU, OPENCL and VULKAN for an hour: memory, open files and results stay constant.

Usage: python benchmarks/runtime/soak.py [--minutes 60] [--threads 8] [--devices CPU,OPENCL,VULKAN] [--pause MS]
A small network runs on each device alone and over all of them in one bundle. Each
thread takes the sessions by turns, with inputs of its own; every result must be equal, bit for bit, to the one that the
same session gave first, and that one close to ONNX Runtime's. Every hundredth run of a thread is in a session that it
loads and closes. Threads wait while memory and files are counted, every ten seconds. With `--pause` each one sleeps
that many milliseconds between two runs, which leaves the machine to others.

Prints a table and writes benchmarks/results/soak.json. Exit status 1 if a result changes, if a file stays open, or if
memory in the last quarter of the time is larger than in the second by more than 2 MiB. The first quarter is not
compared: pools of memory and drivers' caches fill there. SIGTERM ends it early, with a report.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402

from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import Session, load  # noqa: E402
from tests.runtime.stress import PLACES, X_SHAPE, check, conv_net  # noqa: E402

RELOAD = 100
"""One run of so many is in a session of its own."""
EVERY = 10.0
"""Seconds between counts of memory and files."""
GROWTH = 2.0
"""MiB."""

Array = np.ndarray[Any, Any]


@dataclass
class State:
    """Counts at one time: seconds since the start, resident memory in MiB, open files, threads, runs so far."""

    at: float
    memory: float
    files: int
    threads: int
    runs: int


@dataclass
class Work:
    """What the threads share."""

    bundles: dict[str, Path]
    sessions: dict[str, Session]
    given: list[Array]
    expected: list[dict[str, Array]]
    """By thread, then by bundle."""
    runs: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    running: threading.Event = field(default_factory=threading.Event)
    ended: bool = False
    idle: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    lock: threading.Lock = field(default_factory=threading.Lock)
    pause: float = 0.0
    """Seconds between two runs of a thread."""


def compiled(folder: Path, devices: list[str]) -> dict[str, Path]:
    """The network for each device alone, and for all of them."""
    model = conv_net(folder / "m.onnx")
    bundles = {}
    for names in (*([d] for d in devices), devices):
        name = "+".join(names)
        if name not in bundles:
            bundles[name] = folder / f"{name}.hcb"
            places = {node: names[place % len(names)] for node, place in PLACES.items()}
            compile_model(model, bundles[name], devices=",".join(names), affinity=places, cpu_variant=False)
    return bundles


def call(work: Work, number: int) -> None:
    """One thread: all sessions by turns."""
    x, names, turn = work.given[number], list(work.bundles), number
    while True:
        if not work.running.is_set():
            work.idle.release()
            work.running.wait()
        if work.ended:
            return
        turn += 1
        name = names[turn % len(names)]
        try:
            if turn % RELOAD == 0:
                with load(work.bundles[name], threads=1) as session:
                    found = session.run({"x": x})["y"].copy()
            else:
                found = work.sessions[name].run({"x": x})["y"]
            if not np.array_equal(found, work.expected[number][name]):
                raise ValueError("another result")
        except Exception as error:  # the report of the soak
            with work.lock:
                work.failures.append(f"{name}: {type(error).__name__}: {error}")
        with work.lock:
            work.runs[name] = work.runs.get(name, 0) + 1
        if work.pause:
            time.sleep(work.pause)


def state(work: Work, start: float) -> State:
    """Counts while all threads pause."""
    work.running.clear()
    for _ in work.given:
        work.idle.acquire()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    memory = int(next(li for li in status.splitlines() if li.startswith("VmRSS:")).split()[1]) / 1024
    found = State(
        time.monotonic() - start, memory, len(list(Path("/proc/self/fd").iterdir())), threading.active_count(),
        sum(work.runs.values()),
    )  # fmt: skip
    work.running.set()
    return found


def soak(work: Work, seconds: float, ending: threading.Event) -> list[State]:
    """Run all threads for that time; the counts in order."""
    threads = [threading.Thread(target=call, args=(work, n)) for n in range(len(work.given))]
    start = time.monotonic()
    work.running.set()
    for thread in threads:
        thread.start()
    states = []
    while not ending.wait(EVERY) and time.monotonic() - start < seconds and not work.failures:
        states.append(state(work, start))
    work.ended = True
    for thread in threads:
        thread.join()
    return states


def judged(states: list[State], work: Work) -> tuple[dict[str, Any], list[str]]:
    """The report, and what is wrong."""
    quarter = max(1, len(states) // 4)
    second, last = states[quarter : 2 * quarter] or states[:1], states[-quarter:]
    rows = {
        name: {key: round(float(np.median([getattr(s, key) for s in part])), 1) for key in ("memory", "files")}
        for name, part in (("first", states[:quarter]), ("second", second), ("last", last))
    }
    # A process that is stopped for a while counts late.
    gaps = np.diff([0.0, *(s.at for s in states)])
    wrong = list(work.failures)
    if rows["last"]["memory"] - rows["second"]["memory"] > GROWTH:
        wrong.append("memory grows")
    if rows["last"]["files"] > rows["first"]["files"]:
        wrong.append("files stay open")
    found = {
        "minutes": round(states[-1].at / 60, 1),
        "stopped_minutes": round(float(np.sum(np.maximum(0, gaps - 3 * EVERY))) / 60, 1),
        "runs": dict(sorted(work.runs.items())),
        "quarters": rows,
        "wrong": wrong,
    }
    return found, wrong


def main() -> None:
    """Compile, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--devices", default="CPU,OPENCL,VULKAN")
    parser.add_argument("--pause", type=float, default=0, metavar="MS")
    options = parser.parse_args()
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    with tempfile.TemporaryDirectory(prefix="heterocc-soak-") as scratch:
        bundles = compiled(Path(scratch), options.devices.split(","))
        rng = np.random.default_rng(1)
        given = [rng.standard_normal(X_SHAPE).astype(np.float32) for _ in range(options.threads)]
        reference = ort.InferenceSession(str(Path(scratch) / "m.onnx"), providers=["CPUExecutionProvider"])
        sessions = {name: load(path, threads=1) for name, path in bundles.items()}
        expected: list[dict[str, Array]] = [{} for _ in given]
        for x, row in zip(given, expected, strict=True):
            for name, session in sessions.items():
                row[name] = session.run({"x": x})["y"].copy()
                check(row[name], reference.run(None, {"x": x})[0])
        del reference
        work = Work(bundles, sessions, given, expected, pause=options.pause / 1e3)
        states = soak(work, options.minutes * 60, ending)
        for session in sessions.values():
            session.close()
    found, wrong = judged(states, work)
    print(json.dumps(found, indent=2))
    target = ROOT / "benchmarks" / "results" / "soak.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({**found, "states": [asdict(s) for s in states]}, indent=1) + "\n", encoding="utf-8")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
