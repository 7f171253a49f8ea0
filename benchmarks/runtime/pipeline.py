"""Throughput of requests that follow each other through several devices, against that of the slowest device alone.

Usage: python benchmarks/runtime/pipeline.py [--seconds 1.5] [--rounds 3] [--bundle FILE --devices OPENCL,CPU]
Prints a table and writes benchmarks/results/pipeline.json.

Without a bundle, stages that sleep for a known time, and hold a lock meanwhile, stand for devices that do one thing at
a time and share no core with each other. `share` is the throughput over that of the slowest stage, and `gain` that over
the throughput of one request at a time. With a bundle, the slowest device is the one that is busiest in a profile.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.runtime.multi import golden, per_second  # noqa: E402
from heterocc.runtime import load  # noqa: E402

STAGES = ((5, 5), (5, 20), (20, 5), (5, 10, 5), (4, 4, 4, 4))
"""Milliseconds of the stages."""


def stage(milliseconds: float) -> Callable[[], None]:
    """A device that sleeps, one request at a time."""
    device = threading.Lock()

    def work() -> None:
        with device:
            time.sleep(milliseconds / 1e3)

    return work


def measure(bundle: Path, devices: str | None, feed: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The best throughput over some rounds, with one request at a time and with enough for all devices."""
    with load(bundle, devices, threads=1) as session:
        count = len({part.device for part in session.variant.partitions}) + 1
    best = {1: 0.0, count: 0.0}
    for _ in range(options.rounds):
        for requests in best:
            with load(bundle, devices, threads=1, requests=requests) as session:
                best[requests] = max(best[requests], per_second(session, feed, options.seconds))
    return {"requests": count, "alone": best[1], "pipeline": best[count]}


def slowest(work: Callable[[], None], seconds: float) -> float:
    """Calls of a stage in a second: a sleep takes longer than its time."""
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        work()
        count += 1
    return count / (time.perf_counter() - begin)


def busiest(bundle: Path, devices: str | None, feed: dict[str, Any]) -> float:
    """Requests in a second of the device that is busiest in a profiled run."""
    with load(bundle, devices, threads=1, profile=True) as session:
        for _ in range(20):
            session.run(feed)
        busy: dict[str, float] = {}
        profile = session.profile()
        for record in profile.of("partition"):
            busy[record.device] = busy.get(record.device, 0.0) + record.real_ms
    return 1e3 / max(busy.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--devices")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "pipeline.json")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as text:
        if options.bundle is not None:
            feed = golden(options.bundle)
            row = {"case": options.bundle.name, **measure(options.bundle, options.devices, feed, options)}
            rows.append({**row, "slowest": busiest(options.bundle, options.devices, feed)})
        else:
            from tests.runtime import standin

            for times in STAGES:
                bundle = Path(text, f"{times}.hcb")
                standin.write_bundle(bundle, standin.stages([stage(t) for t in times]))
                row = {"case": f"{times} ms", **measure(bundle, None, {"x": np.ones(1, np.float32)}, options)}
                rows.append({**row, "slowest": slowest(stage(max(times)), options.seconds / 3)})
    for row in rows:
        row["share"], row["gain"] = row["pipeline"] / row["slowest"], row["pipeline"] / row["alone"]
        print(
            f"{row['case']:<20} slowest stage {row['slowest']:8.1f} /s, pipeline of {row['requests']} requests "
            f"{row['pipeline']:8.1f} /s: share {row['share']:.3f}, gain {row['gain']:.2f}"
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
