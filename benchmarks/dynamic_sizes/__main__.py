"""One row of benchmarks/networks/dynamic.py: bundles of a model and ONNX Runtime take turns on the same inputs.

Usage, from the root of the project: python -m benchmarks.dynamic_sizes JSON, with the model's file, sizes, values,
bundles by name, threads and seconds. Prints, as JSON, the least and the median milliseconds by runner, what differs
from ONNX Runtime, and the kernels that take most of the time of runners slower than it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.dynamic_sizes.inputs import feed_of
from heterocc.compiler.checking.compare import FLOAT16, FLOAT32, QUANTISED, Tolerance, compare
from heterocc.runtime import load
from heterocc.runtime.cli.bench import interleave, onnxruntime_runner

PEER = "onnxruntime"
_SLOW = 5
"""Kernels that are named of a bundle that is slower than ONNX Runtime."""


def row(path: Path, sizes: Mapping[str, int], values: Mapping[str, int | str], bundles: Mapping[str, str],
        threads: int, seconds: float) -> dict[str, Any]:  # fmt: skip
    """The row, as it is printed."""
    feed = feed_of(path, sizes, values)
    peer = onnxruntime_runner(path, feed, threads)
    expected, tolerance = peer(), _tolerance(path)
    found: dict[str, Any] = {"different": {}, "failed": {}, "slow": {}}
    with ExitStack() as stack:
        runners: list[tuple[str, Callable[[], object]]] = []
        for name, file in bundles.items():
            try:
                session = stack.enter_context(load(file, threads=threads))
                results = session.run(feed)
            except Exception as error:  # a failure is a row of the table, whatever it is
                found["failed"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            for (output, ours), theirs in zip(results.items(), expected, strict=True):  # type: ignore[call-overload]
                difference = compare(output, ours, np.asarray(theirs), tolerance)
                if difference.reason:
                    found["different"].setdefault(name, f"{output}: {difference.reason}")
            runners.append((name, lambda session=session: session.run(feed)))  # type: ignore[misc]
        timings = interleave([*runners, (PEER, peer)], seconds * (len(runners) + 1), None)
    found["ms"] = {t.name: [t.percentile(0), t.percentile(50)] for t in timings}
    for name, (least, _) in found["ms"].items():
        if least > found["ms"][PEER][0]:
            found["slow"][name] = slowest(bundles[name], feed, threads)
    return found


def slowest(bundle: str, feed: Mapping[str, Any], threads: int) -> list[str]:
    """The kernels that take most of a bundle's time, and partitions in ONNX Runtime, with their shares of it."""
    with load(bundle, threads=threads, profile=True) as session:
        for _ in range(3):
            session.clear_profile()
            session.run(feed)
        profile = session.profile()
    kernels = [(r.real_ms, r.layer_type, r.name) for r in profile.of("kernel") if r.real_ms]
    inside = [
        (r.real_ms, "in ONNX Runtime", r.layer_type) for r in profile.of("partition") if r.exec_type == "ORT onnx"
    ]
    named = sorted([*kernels, *inside], reverse=True)[:_SLOW]
    return [f"{ms / profile.total_ms:.0%} {ms:.3f} ms {kind}: {name[:60]}" for ms, kind, name in named]


def _tolerance(path: Path) -> Tolerance:
    """That of the compiler's check for the coarsest arithmetic in the model."""
    model = onnx.load(path, load_external_data=False)
    operators = {node.op_type for node in model.graph.node}
    if any("Quantize" in o or "Integer" in o or o.startswith("QLinear") for o in operators):
        return QUANTISED
    half = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer)
    return FLOAT16 if half else FLOAT32


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(row(Path(given.pop("path")), **given)))
