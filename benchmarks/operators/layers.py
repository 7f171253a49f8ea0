"""Recurrent layers and tree ensembles on the CPU against ONNX Runtime.

Usage: python benchmarks/operators/layers.py [--threads 1,2] [--seconds 2] [NAME …]
NAME is a part of a row's name; the default is all rows. The runners take turns in blocks, `--seconds` in all, with a
pause between, because threads that still wait for work would slow the next runner down. Prints a table of minima and
writes benchmarks/results/layers.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import load  # noqa: E402
from tests.ml_models import classifier, random_trees, regressor  # noqa: E402

STEPS, ROUNDS, FEATURES = 100, 5, 20


def recurrent(kind: str, hidden: int, batch: int) -> onnx.ModelProto:
    """A layer with as many inputs as states."""
    rng, gates = np.random.default_rng(0), {"LSTM": 4, "GRU": 3}[kind] * hidden
    shapes = {"w": (1, gates, hidden), "r": (1, gates, hidden), "b": (1, 2 * gates)}
    weights = {name: rng.uniform(-1, 1, shape) / hidden**0.5 for name, shape in shapes.items()}
    more = {"linear_before_reset": 1} if kind == "GRU" else {}
    node = helper.make_node(kind, ["x", *weights], ["y"], hidden_size=hidden, **more)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [STEPS, batch, hidden])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return made


def trees(classes: int) -> onnx.ModelProto:
    """100 trees of depth 6, as scikit-learn's forests have them; 0 classes mean a regression."""
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {"trees": 100, "depth": 6, "features": FEATURES, "modes": ("BRANCH_LEQ",), "missing": False}
    if not classes:
        return regressor(random_trees(rng, **given), features=FEATURES)
    attributes = random_trees(rng, **given, targets=range(classes), each=classes, prefix="class", low=0.0)
    return classifier(attributes, range(classes), features=FEATURES)


def cases() -> Iterator[tuple[str, onnx.ModelProto, tuple[int, ...]]]:
    """Name, model and shape of the input of every row."""
    for kind in ("LSTM", "GRU"):
        for hidden in (128, 512):
            for batch in (1, 16):
                yield f"{kind} {hidden} batch {batch}", recurrent(kind, hidden, batch), (STEPS, batch, hidden)
    for rows in (1, 1000):
        yield f"100 trees batch {rows}", trees(0), (rows, FEATURES)
        yield f"100 trees, 3 classes batch {rows}", trees(3), (rows, FEATURES)


def measured(runners: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The least time of each runner, in milliseconds."""
    best = dict.fromkeys(runners, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runners.items():
            time.sleep(0.05)
            end = time.perf_counter() + seconds / ROUNDS
            while time.perf_counter() < end:
                start = time.perf_counter()
                run()
                best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


def row(name: str, model: onnx.ModelProto, shape: tuple[int, ...], threads: int, seconds: float) -> dict[str, Any]:
    """One row: times, and the ratio of ONNX Runtime's to ours."""
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    peer = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "m.hcb"
        compile_model(model, bundle, devices="CPU")
        with load(bundle, threads=threads) as session:
            for found, wanted in zip(session.run(None, {"x": x}), peer.run(None, {"x": x}), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
            runners: dict[str, Callable[[], object]] = {
                "heterocc": lambda: session.run({"x": x}),
                "onnxruntime": lambda: peer.run(None, {"x": x}),
            }
            ms = measured(runners, seconds)
    return {"name": name, "threads": threads, "ms": ms, "ratio": ms["onnxruntime"] / ms["heterocc"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    print(f"{'layer':<32}{'threads':>8}{'ours ms':>10}{'ORT ms':>10}{'ORT/ours':>10}")
    found = []
    for name, model, shape in cases():
        if given.names and not any(part in name for part in given.names):
            continue
        for threads in map(int, given.threads.split(",")):
            one = row(name, model, shape, threads, given.seconds)
            found.append(one)
            ours, ort = one["ms"]["heterocc"], one["ms"]["onnxruntime"]
            print(f"{name:<32}{threads:>8}{ours:>10.3f}{ort:>10.3f}{one['ratio']:>10.2f}", flush=True)
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    (out / "layers.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
