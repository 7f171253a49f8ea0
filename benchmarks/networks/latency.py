"""Latency of compiled bundles against ONNX Runtime (and OpenVINO if it is installed), interleaved in one run.

Usage: python benchmarks/networks/latency.py [--devices CPU] [--seconds 6] [MODEL …]
MODEL is a light network (squeezenet) or a row of tests/models.toml; the default is six light networks.
Prints a table and writes benchmarks/results/latency.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.peers.openvino import openvino_runner  # noqa: E402
from heterocc.artifacts.reader import open_bundle  # noqa: E402
from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import load  # noqa: E402
from heterocc.runtime.cli.bench import interleave, onnxruntime_runner  # noqa: E402

DEFAULT = ("squeezenet", "shufflenet", "resnet50", "inception_v2", "densenet121", "vgg19")


def peer_of(model: Path, feed: dict[str, Any]) -> Callable[[], object] | None:
    """OpenVINO with all cores, or None if it is not installed or cannot load the model."""
    try:
        return openvino_runner(model, feed, len(os.sched_getaffinity(0)))
    except ImportError:
        return None
    except RuntimeError as error:
        print(f"  OpenVINO cannot run {model.name}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def measure(name: str, devices: str, seconds: float) -> dict[str, Any]:
    """Times of one model in milliseconds, by runner, and the ratio of ours to ONNX Runtime's."""
    from tests import models

    row = None if not name.endswith(".onnx") else models.rows()[name]
    path = models.light(name) if row is None else models.real(name)
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "m.hcb"
        report = compile_model(path, bundle, devices=devices, shapes={} if row is None else dict(row.shapes))
        with open_bundle(bundle) as opened:
            golden = opened.manifest.golden
            assert golden is not None
            feed = {n: opened.array(member).copy() for n, member in golden.inputs.items()}
        with load(bundle) as session:
            runners: list[tuple[str, Callable[[], object]]] = [
                ("heterocc", lambda: session.run(feed)),
                ("onnxruntime", onnxruntime_runner(path, feed, None)),
            ]
            peer = peer_of(path, feed)
            if peer is not None:
                runners.append(("openvino", peer))
            for _, run in runners:
                run()
            timings = interleave(runners, seconds * len(runners), None)
    times = {t.name: {"min": t.percentile(0), "median": t.percentile(50)} for t in timings}
    ours, ort = times["heterocc"], times["onnxruntime"]
    return {"model": name, "summary": report.summary, "ms": times, "ratio_min": ours["min"] / ort["min"],
            "ratio_median": ours["median"] / ort["median"]}  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(DEFAULT))
    parser.add_argument("--devices", default="CPU,ORT")
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    print(f"{'model':<34}{'ours min':>10}{'ORT min':>10}{'OV min':>10}{'ours/ORT min':>14}{'median':>8}")
    rows = []
    for name in options.models:
        row = measure(name, options.devices, options.seconds)
        rows.append(row)
        ms = row["ms"]
        openvino = f"{ms['openvino']['min']:.2f}" if "openvino" in ms else "-"
        print(
            f"{name:<34}{ms['heterocc']['min']:>10.2f}{ms['onnxruntime']['min']:>10.2f}{openvino:>10}"
            f"{row['ratio_min']:>14.2f}{row['ratio_median']:>8.2f}",
            flush=True,
        )
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    (out / "latency.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
