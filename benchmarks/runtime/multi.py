"""Throughput of `MULTI` against that of each device alone, in turns within one process.

Usage: python benchmarks/runtime/multi.py [--seconds 1.5] [--rounds 3] [--bundle FILE --devices MULTI:OPENCL,CPU]
Prints a table and writes benchmarks/results/multi.json.

Without a bundle, kernels that sleep for a known time stand for devices that share no core with each other. With one,
its variants for the listed devices are measured; for PoCL beside the CPU with a core each, set
POCL_MAX_PTHREAD_COUNT=1 and POCL_CPU_MAX_CU_COUNT=1. `share` is the throughput of MULTI over the sum of those of its
devices alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from heterocc.artifacts.reader import open_bundle  # noqa: E402
from heterocc.runtime import Session, load  # noqa: E402

SLEEPS = ((5, 5), (5, 20), (2, 20))


def per_second(session: Session, feed: dict[str, Any], seconds: float) -> float:
    """Results of a stream in a second, after a start that is not counted."""
    until = [time.perf_counter() + seconds / 4]

    def feeds() -> Iterator[dict[str, Any]]:
        while time.perf_counter() < until[0]:
            yield feed

    for _ in session.stream(feeds()):
        pass
    begin = time.perf_counter()
    until[0] = begin + seconds
    count = sum(1 for _ in session.stream(feeds()))
    return count / (time.perf_counter() - begin)


def measure(bundle: Path, devices: str, feed: dict[str, Any], seconds: float, rounds: int) -> dict[str, Any]:
    """The best throughput of each device alone and of all together, over some rounds."""
    lists = [*devices.partition(":")[2].split(","), devices]
    requests = {name: None if name == devices else 1 for name in lists}
    best = dict.fromkeys(lists, 0.0)
    for _ in range(rounds):
        for name in lists:
            alone = name if name == devices else f"MULTI:{name}"
            with load(bundle, alone, threads=1, requests=requests[name] or 1) as session:
                best[name] = max(best[name], per_second(session, feed, seconds))
    together = best.pop(devices)
    return {"devices": devices, "alone": best, "together": together, "share": together / sum(best.values())}


def sleeping(folder: Path, times: tuple[int, int]) -> Path:
    """A bundle of two variants that sleep for these milliseconds."""
    from tests.runtime import standin

    names = ("FIRST", "SECOND")
    models = [standin.sleeping(t, name) for t, name in zip(times, names, strict=True)]
    return standin.write_bundle(folder / f"{times}.hcb", *models)


def golden(bundle: Path) -> dict[str, Any]:
    """The golden inputs of a bundle."""
    with open_bundle(bundle) as opened:
        vectors = opened.manifest.golden
        if vectors is None:
            raise SystemExit("the bundle has no golden vectors")
        return {name: opened.array(member).copy() for name, member in vectors.inputs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--devices", default="MULTI:OPENCL,CPU")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "multi.json")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as text:
        if options.bundle is not None:
            cases = [("bundle", options.bundle, options.devices, golden(options.bundle))]
        else:
            one = {"x": np.ones(1, np.float32)}
            cases = [(f"{a} ms and {b} ms", sleeping(Path(text), (a, b)), "MULTI:FIRST,SECOND", one) for a, b in SLEEPS]
        for name, bundle, devices, feed in cases:
            row = {"case": name, **measure(bundle, devices, feed, options.seconds, options.rounds)}
            rows.append(row)
            alone = "  ".join(f"{device} {rate:8.1f}" for device, rate in row["alone"].items())
            print(f"{name:<18} {alone}  together {row['together']:8.1f} /s  share {row['share']:.3f}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
