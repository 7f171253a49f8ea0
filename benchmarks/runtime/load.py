"""Loading a bundle against creating an ONNX Runtime session for the same model, taking turns in one process.

    python benchmarks/runtime/load.py                               ResNet50 with seeded weights, compiled for CPU,ORT
    python benchmarks/runtime/load.py m.hcb model.onnx [--json FILE]

`load` is the time until the session is ready, imports done; weights are still being hashed then. `first run` includes
the wait for that. `again` is a load of a file that this process has verified before. The least time of each counts.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime

from heterocc.runtime import Session, load

RESULTS = Path(__file__).resolve().parents[1] / "results"
TARGET_MS = 15.0


@dataclass(frozen=True, slots=True)
class Loading:
    """Milliseconds, the least of `rounds`; `bundle_bytes` and `model_bytes` are file sizes."""

    model: str
    variant: str
    bundle_bytes: int
    model_bytes: int
    rounds: int
    load: float
    load_median: float
    first_run: float
    load_verified: float
    again: float
    onnxruntime: float
    onnxruntime_median: float
    onnxruntime_first_run: float

    @property
    def ratio(self) -> float:
        """Creating ONNX Runtime's session by loading the bundle."""
        return self.onnxruntime / self.load


def _as_new(bundle: Path) -> None:
    """Make the next load verify the weights again: only unchanged files are remembered, and not within 0.1 s."""
    os.utime(bundle)
    time.sleep(0.15)


def seeded_feed(session: Session) -> dict[str, np.ndarray[Any, Any]]:
    """Random inputs of the right dtype and shape."""
    rng = np.random.default_rng(0)
    feed = {}
    for info in session.inputs:
        shape = tuple(d or 1 for d in info.shape or ())
        feed[info.name] = rng.standard_normal(shape).astype(info.dtype)
    return feed


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Milliseconds of a call, and its result."""
    gc.collect()
    start = perf_counter()
    result = call()
    return (perf_counter() - start) * 1e3, result


def measure(bundle: Path, model: Path, threads: int | None, rounds: int) -> Loading:
    """Take turns at loading; everything is loaded once before, so that files are in the page cache and imports done."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    times: dict[str, list[float]] = {}

    def note(name: str, call: Callable[[], Any]) -> Any:
        milliseconds, result = timed(call)
        times.setdefault(name, []).append(milliseconds)
        return result

    def create() -> Any:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    with load(bundle, threads=threads) as session:
        feed, variant = seeded_feed(session), ",".join(session.devices)
        session.run(feed)
    create()
    for _ in range(rounds):
        _as_new(bundle)
        with note("load", lambda: load(bundle, threads=threads)) as session:
            note("first_run", lambda session=session: session.run(feed))
        with note("again", lambda: load(bundle, threads=threads)) as session:
            session.run(feed)
        _as_new(bundle)
        note("load_verified", lambda: load(bundle, threads=threads, verify="load")).close()
        reference = note("onnxruntime", create)
        note("onnxruntime_first_run", lambda reference=reference: reference.run(None, feed))
        del reference
    best = {name: min(found) for name, found in times.items()}
    return Loading(
        model=model.name,
        variant=variant,
        bundle_bytes=bundle.stat().st_size,
        model_bytes=model.stat().st_size,
        rounds=rounds,
        load_median=float(np.median(times["load"])),
        onnxruntime_median=float(np.median(times["onnxruntime"])),
        **best,
    )


def table(found: Loading) -> str:
    """The result as text."""
    rows = [
        ("load", found.load, "bundle, until ready to run"),
        ("first run", found.first_run, "with the wait for the weights' hashes"),
        ("load, verified", found.load_verified, 'verify="load"'),
        ("load again", found.again, "a file verified before in this process"),
        ("ONNX Runtime, session", found.onnxruntime, "model file, until ready to run"),
        ("ONNX Runtime, first run", found.onnxruntime_first_run, ""),
    ]
    lines = [f"{found.model}: bundle {found.bundle_bytes / 1e6:.1f} MB on {found.variant}, least of {found.rounds}"]
    lines += [f"{name:<26}{value:>10.2f} ms  {note}".rstrip() for name, value, note in rows]
    lines.append(f"ONNX Runtime takes {found.ratio:.1f} times as long to be ready")
    lines.append(f"loading takes {found.load / TARGET_MS:.2f} of the {TARGET_MS:.0f} ms that are allowed")
    return "\n".join(lines)


def resnet50(folder: Path) -> tuple[Path, Path]:
    """A bundle of ResNet50 with seeded weights, and the model."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from heterocc.compiler import compile_model
    from tests import models

    model = models.light("resnet50")
    report = compile_model(model, folder / "resnet50.hcb", check=False)
    if report.output is None:
        raise SystemExit("the compile wrote no bundle")
    return report.output, model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle", type=Path, nargs="?")
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, default=RESULTS / "load.json")
    options = parser.parse_args()
    if (options.bundle is None) != (options.model is None):
        parser.error("give both a bundle and its model, or neither")
    with tempfile.TemporaryDirectory() as folder:
        bundle, model = (options.bundle, options.model) if options.bundle else resnet50(Path(folder))
        found = measure(bundle, model, options.threads, options.rounds)
    print(table(found))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(asdict(found) | {"ratio": found.ratio}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
