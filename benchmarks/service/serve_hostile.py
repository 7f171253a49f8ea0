"""What hostile requests cost a service: the time in which it answers no other request, and memory.

Usage: python benchmarks/service/serve_hostile.py [--megabytes 16] [--rounds 3]
Each kind of request of tests/runtime/serve/hostile.py is sent alone to a service in a process of its own, while another
client asks whether the service is live, all the time. `longest` is the least of some rounds, because other programs on
the machine delay answers, too; `memory` is the most by which the process grew, divided by the request's size. Prints a
table and writes benchmarks/results/serve_hostile.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.runtime.serve.hostile import JSON, PROTOBUF, channel_to, cost_of, infer, post, write_models  # noqa: E402
from tests.runtime.serve.process import ServiceProcess  # noqa: E402


def requests(service: ServiceProcess, size: int) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """The protocol and kind of each request, its size, and what sends it and returns the status."""
    for name, make in JSON.items():
        model, body = make(size)
        yield f"HTTP: {name}", len(body), lambda model=model, body=body: post(service, model, body)[0]
    with channel_to(service) as channel:
        for name, message in PROTOBUF.items():
            data = message(size)
            yield f"gRPC: {name}", len(data), lambda data=data: infer(channel, data)


def main() -> None:
    """Measure all kinds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rows = []
    print(f"{'':40} {'status':>20} {'s':>7} {'longest, ms':>12} {'memory':>8}")
    with (
        tempfile.TemporaryDirectory() as folder,
        ServiceProcess(write_models(Path(folder) / "models"), "--workers", 2) as service,
    ):
        for name, size, send in requests(service, given.megabytes * 1_000_000):
            seen: list[object] = []
            costs = [cost_of(service, lambda: seen.append(send())) for _ in range(given.rounds)]  # noqa: B023
            row: dict[str, Any] = {
                "request": name,
                "bytes": size,
                "status": str(seen[-1]),
                "seconds": min(cost.seconds for cost in costs),
                "longest_ms": min(cost.longest for cost in costs) * 1e3,
                "memory": max(cost.memory for cost in costs) / size,
            }
            rows.append(row)
            times = f"{row['seconds']:7.2f} {row['longest_ms']:12.1f} {row['memory']:8.1f}"
            print(f"{name:40} {row['status']:>20} {times}", flush=True)
    target = ROOT / "benchmarks" / "results" / "serve_hostile.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
