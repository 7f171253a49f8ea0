"""Operators with dynamic sizes on the CPU, beside the same with fixed sizes and ONNX Runtime.

Usage: python benchmarks/operators/dynamic_operators.py [--seconds 0.3] [--keep FOLDER] [--under RATIO] [NAME …]
NAME is a part of a row's kind or name; the default is all rows. Each model is compiled as it comes, and for each of its
sizes (`--dim`). All results are compared with ONNX Runtime's, then the three take turns on one thread. `--keep` is a
folder for bundles, which are not compiled again if they are there; `--under` prints only rows of which the code for
any size takes more than 1/RATIO of the time of the code for the size.

Prints minima of processor time in microseconds, the time of the code for the size over that of the code for any size (1
is as fast), and ONNX Runtime's time over that of the code for any size; then their geometric means by kind, and the
processor time of compiles for any size over that of compiles for one. Writes benchmarks/results/dynamic_operators.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.operators.cases.dynamic import Dims, DynamicCase, dynamic_cases  # noqa: E402
from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import load  # noqa: E402
from heterocc.runtime.cli.bench import onnxruntime_runner  # noqa: E402

_TURN = 0.002
"""Seconds that a runner has the processor before the next one has it."""

_MEASURED = 0.0002
"""Seconds of runs that are measured together: asking for the time of a thread takes as long as the smallest kernels."""


def feed_of(model: onnx.ModelProto, dims: Dims) -> dict[str, Any]:
    """Seeded inputs of these sizes."""
    rng = np.random.default_rng(0)
    shapes = {
        given.name: [dims[d.dim_param] if d.dim_param else d.dim_value for d in given.type.tensor_type.shape.dim]
        for given in model.graph.input
    }
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def minima(runners: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The least microseconds of processor time of each, in turns, of at least five."""
    times = dict.fromkeys(runners, math.inf)
    counts = {name: max(1, int(_MEASURED / _timed(run, 1))) for name, run in runners.items()}
    start, turns = time.perf_counter(), 0
    while turns < 5 or time.perf_counter() - start < seconds * len(runners):
        turns += 1
        for name, run in runners.items():
            run()  # the first run of a turn warms the caches that the others used
            most = max(1, int(_TURN / _MEASURED))
            times[name] = min(times[name], *(_timed(run, counts[name]) for _ in range(most)))
    return {name: t * 1e6 for name, t in times.items()}


def _timed(run: Callable[[], object], count: int) -> float:
    """The mean time of some runs on this thread, without what others take of the processor."""
    before = time.thread_time()
    for _ in range(count):
        run()
    return (time.thread_time() - before) / count


class Bundles:
    """The bundles of a case, and the seconds of processor time of their compiles."""

    def __init__(self, case: DynamicCase, folder: Path) -> None:
        self._stem = "".join(c if c.isalnum() else "-" for c in f"{case.kind}-{case.name}")
        self._folder = folder
        self.model = folder / f"{self._stem}.onnx"
        onnx.save(case.build(), self.model)
        self.seconds: dict[str, float] = {}

    def of(self, dims: Dims | None) -> Path:
        """For these sizes, or for any."""
        label = "any" if dims is None else "fixed"
        size = "any" if dims is None else "-".join(f"{name}{size}" for name, size in dims.items())
        bundle = self._folder / f"{self._stem}-{size}.hcb"
        if not bundle.exists():
            before = time.process_time()
            compile_model(self.model, bundle, devices="CPU", dims=dims or {})
            self.seconds.setdefault(label, time.process_time() - before)
        return bundle


def measure(case: DynamicCase, folder: Path, seconds: float) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The rows of a case, and the seconds of its compiles."""
    bundles, rows = Bundles(case, folder), []
    model = onnx.load(bundles.model)
    for dims in case.sizes:
        feed = feed_of(model, dims)
        peer = onnxruntime_runner(bundles.model, feed, 1)
        expected = peer()
        with ExitStack() as stack:
            runners: dict[str, Callable[[], object]] = {}
            for name, file in (("any", bundles.of(None)), ("fixed", bundles.of(dims))):
                session = stack.enter_context(load(file, threads=1))
                for ours, theirs in zip(session.run(feed).values(), expected, strict=True):  # type: ignore[call-overload]
                    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4, err_msg=f"{case.name} {dims} {name}")
                runners[name] = partial(session.run, feed)
            runners["onnxruntime"] = peer
            us = minima(runners, seconds)
        rows.append({"kind": case.kind, "name": case.name, "dims": dims, "us": us})
    return rows, bundles.seconds


def of_fixed(row: dict[str, Any]) -> float:
    """The time for the size over the time for any size."""
    return float(row["us"]["fixed"] / row["us"]["any"])


def of_peer(row: dict[str, Any]) -> float:
    """ONNX Runtime's time over that of the code for any size."""
    return float(row["us"]["onnxruntime"] / row["us"]["any"])


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    size = "x".join(map(str, row["dims"].values()))
    us = "".join(f"{row['us'][name]:>11.1f}" for name in ("any", "fixed", "onnxruntime"))
    return f"{row['kind'] + ' ' + row['name']:<42}{size:>13}{us}{of_fixed(row):>9.2f}{of_peer(row):>9.2f}"


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=0.3, help="per size and runner")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--under", type=float, default=math.inf)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    compiles: list[dict[str, float]] = []
    print(f"{'us':<42}{'size':>13}{'any':>11}{'fixed':>11}{'ORT':>11}{'fixed/':>9}{'ORT/':>9}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for case in dynamic_cases():
            if given.names and not any(name in f"{case.kind} {case.name}" for name in given.names):
                continue
            found, seconds = measure(case, folder, given.seconds)
            for row in found:
                if of_fixed(row) < given.under:
                    print(line(row), flush=True)
            rows += found
            compiles += [seconds] if len(seconds) == 2 else []
    print()
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = [row for row in rows if row["kind"] == kind]
        peer = mean([of_peer(row) for row in of_kind])
        print(f"{kind:<42}{'':>46}{mean([of_fixed(row) for row in of_kind]):>9.2f}{peer:>9.2f}")
    if compiles:
        ratio = mean([seconds["any"] / seconds["fixed"] for seconds in compiles])
        print(f"processor time of a compile for any size over one for a size: {ratio:.2f} ({len(compiles)} models)")
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    (out / "dynamic_operators.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
