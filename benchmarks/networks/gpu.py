"""Latency on Vulkan and OpenCL devices, beside ncnn's Vulkan back end on the same driver, interleaved in one run.

Usage: python benchmarks/networks/gpu.py [--devices VULKAN,OPENCL] [--seconds 8] [--set {light,kinds}] [MODEL …]
MODEL is a light network (squeezenet), a network of tests/networks.py (unet, vit) or an .onnx file; only a model with
one input is run by ncnn too. Without any, the four light networks of the set `light` are measured; `--set kinds` means
all of tests/networks.py, small ones of the kinds that people bring.
Everything runs in float32, and every runner's result is compared with ONNX Runtime's before it is timed.
ncnn is optional: PyPI `ncnn`, with models converted by the binary in PyPI `pnnx` (`pip install --no-deps pnnx`), both
found on PYTHONPATH too. Prints a table and writes benchmarks/results/gpu.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.peers.ncnn import Array, Run, leave_ncnn, ncnn_missing, ncnn_runner  # noqa: E402
from heterocc.artifacts.errors import HeteroccError  # noqa: E402
from heterocc.artifacts.reader import open_bundle  # noqa: E402
from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import Session, load  # noqa: E402
from heterocc.runtime.cli.bench import interleave, onnxruntime_runner  # noqa: E402
from heterocc.runtime.native.opencl_api import opencl_devices  # noqa: E402
from heterocc.runtime.native.vulkan_api import vulkan_devices  # noqa: E402

DEFAULT = ("squeezenet", "shufflenet", "resnet50", "densenet121")
NCNN = "ncnn Vulkan"
WORST = 2e-2
"""The largest valid difference from ONNX Runtime's result, relative to its largest value."""


def far(found: Array, expected: Array) -> float:
    """Largest difference over the largest expected value; NaN if a value is not finite or the sizes differ."""
    if found.size != expected.size:
        return math.nan
    return float(np.max(np.abs(found.reshape(-1) - expected.reshape(-1))) / np.max(np.abs(expected)))


def devices_here() -> dict[str, str]:
    """The first device of each API, in words."""
    found = {}
    for name, ask in (("VULKAN", vulkan_devices), ("OPENCL", opencl_devices)):
        try:
            first = ask()[0]
            found[name] = f"{first.name}, {first.driver}" + (" (software)" if first.software else "")
        except HeteroccError as error:
            found[name] = error.message
    return found


def model_path(name: str) -> Path:
    """The path of a model named on the command line."""
    from tests import models, networks

    if name.endswith(".onnx"):
        return Path(name)
    return networks.network(name) if name in networks.NETWORKS else models.light(name)


def names_of(chosen: str) -> list[str]:
    """The models of a set, by its name on the command line."""
    from tests import networks

    return list(DEFAULT) if chosen == "light" else list(networks.NETWORKS)


def measure(name: str, devices: tuple[str, ...], seconds: float, with_ncnn: bool) -> dict[str, Any]:
    """Times of one model in milliseconds by runner, what was compiled, and how far results lie from ONNX Runtime's."""
    path = model_path(name)
    row: dict[str, Any] = {"model": name, "compiled": {}, "failed": {}, "error": {}, "ms": {}}
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        feed: dict[str, Array] = {}
        runners: list[tuple[str, Run]] = []
        for device in devices:
            bundle = work / f"{device}.hcb"
            try:
                start = time.perf_counter()
                report = compile_model(path, bundle, devices=f"{device},CPU")
                took = time.perf_counter() - start
                start = time.perf_counter()
                session = stack.enter_context(load(bundle, verify="load"))
                loaded = time.perf_counter() - start
            except HeteroccError as error:
                row["failed"][device] = str(error)
                continue
            if not feed:
                feed = golden_inputs(bundle)
            ours = {"summary": report.summary, "compile_s": round(took, 2), "load_s": round(loaded, 3)}
            row["compiled"][device] = ours
            runners.append((device, session_runner(session, feed)))
        if not feed:
            return row
        if with_ncnn:
            try:
                run = ncnn_runner(path, feed, work, stack)
                run()
                runners.append((NCNN, run))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                row["failed"][NCNN] = str(error)
        (expected, *_) = onnxruntime_runner(path, feed, None)()  # type: ignore[misc]
        for runner, run in runners:
            row["error"][runner] = far(run(), expected)
        right = [(runner, run) for runner, run in runners if row["error"][runner] <= WORST]
        row["failed"] |= {r: f"off by {e:.1e}" for r, e in row["error"].items() if not e <= WORST}
        if right:
            for t in interleave(right, seconds * len(right), None):
                row["ms"][t.name] = {"min": t.percentile(0), "median": t.percentile(50), "runs": len(t.latencies)}
        right.clear()
        runners.clear()
    return row


def _measure_here(name: str, devices: tuple[str, ...], seconds: float, with_ncnn: bool) -> dict[str, Any]:
    row = measure(name, devices, seconds, with_ncnn)
    if with_ncnn:
        leave_ncnn()
    return row


def measure_apart(name: str, devices: tuple[str, ...], seconds: float, with_ncnn: bool) -> dict[str, Any]:
    """`measure` in a fresh process, and again without ncnn if that process died; ncnn crashes on some networks."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(_measure_here, name, devices, seconds, with_ncnn).result()
        except BrokenProcessPool:
            if not with_ncnn:
                raise
    row = measure_apart(name, devices, seconds, False)
    row["failed"][NCNN] = "the process with it died, the one without did not"
    return row


def session_runner(session: Session, feed: dict[str, Array]) -> Run:
    """One run of a session, giving the model's first output."""
    return lambda: next(iter(session.run(feed).values()))


def golden_inputs(bundle: Path) -> dict[str, Array]:
    """The inputs that the compile drew for the model."""
    with open_bundle(bundle) as opened:
        golden = opened.manifest.golden
        assert golden is not None, "the bundle has no golden vectors"
        return {name: opened.array(member).copy() for name, member in golden.inputs.items()}


def line(row: dict[str, Any], devices: tuple[str, ...]) -> str:
    """A row of the table: the least time of each runner and, by device, its ratio to ncnn's in this run."""
    ms = row["ms"]
    cells = [f"{ms[r]['min']:>16.1f}" if r in ms else f"{'-':>16}" for r in (*devices, NCNN)]
    for device in devices:
        both = device in ms and NCNN in ms
        for figure in ("min", "median"):
            cells.append(f"{ms[device][figure] / ms[NCNN][figure]:>14.2f}" if both else f"{'-':>14}")
    return f"{row['model']:<16}" + "".join(cells)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="light networks, networks of tests/networks.py, .onnx files")
    parser.add_argument("--set", choices=("light", "kinds"), help="without models: these (default: light)")
    parser.add_argument("--devices", default="VULKAN,OPENCL")
    parser.add_argument("--seconds", type=float, default=8.0, help="per model and runner")
    options = parser.parse_args()
    if options.models and options.set:
        parser.error("give models or --set, not both")
    devices = tuple(options.devices.split(","))
    here = devices_here()
    for name, text in here.items():
        print(f"{name}: {text}")
    missing = ncnn_missing()
    if missing:
        print(f"{NCNN}: {missing}; ours alone is measured")
    head = [f"{r + ' ms':>16}" for r in (*devices, NCNN)]
    head += [f"{text:>14}" for d in devices for text in (f"{d}/ncnn", "of medians")]
    print(f"{'model':<16}" + "".join(head))
    rows = []
    for name in options.models or names_of(options.set or "light"):
        row = measure_apart(name, devices, options.seconds, missing is None)
        rows.append(row)
        print(line(row, devices), flush=True)
        for runner, reason in row["failed"].items():
            print(f"  {runner}: {reason}", flush=True)
    if missing is None:
        leave_ncnn()
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    host = {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    report = {**host, "devices": here, "ncnn_missing": missing, "models": rows}
    (out / "gpu.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
