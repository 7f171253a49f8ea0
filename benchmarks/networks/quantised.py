"""Quantised networks on the CPU beside ONNX Runtime and OpenVINO, interleaved, and the sizes of models and bundles.

Usage: python benchmarks/networks/quantised.py [--threads 1,2] [--seconds 2] [--dynamic] [--whole] [--target CPU] NAME …
NAME is a light network (resnet50) or an .onnx file. One without quantised operators is quantised first by
onnxruntime.quantization, on seeded inputs: between QuantizeLinear and DequantizeLinear with uint8 data and int8 weights
by channel (with `--whole` by tensor), or with `--dynamic`, which suits matrix products. Prints a table and writes
benchmarks/results/quantised.json.

The ratios are ONNX Runtime's time over ours at the minimum of each: above 1 is faster. The second is that of its exact
products (session.x64quantprecision): on x86 without VNNI its default saturates sums of two products in 16 bits.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.networks.cpu import locate, onnxruntime_runner  # noqa: E402
from benchmarks.peers.openvino import openvino_runner  # noqa: E402
from heterocc.artifacts.reader import open_bundle  # noqa: E402
from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import load  # noqa: E402
from heterocc.runtime.cli.bench import interleave  # noqa: E402
from heterocc.runtime.execute.ort_session import open_session, session_options  # noqa: E402

QUANTISED = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
CALIBRATION = 2
"""Seeded inputs that determine the scales; speed does not depend on them."""


class _Inputs:
    """Seeded inputs, as onnxruntime.quantization reads them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        weights = {t.name for t in model.graph.initializer}
        self._given = iter([_feed(model, weights, seed) for seed in range(CALIBRATION)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._given, None)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return self._given


def _feed(model: onnx.ModelProto, weights: set[str], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = [d.dim_value or 1 for d in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if info.name not in weights:
            whole = np.issubdtype(dtype, np.integer)
            found[info.name] = (rng.integers(0, 2, shape) if whole else rng.standard_normal(shape)).astype(dtype)
    return found


def quantised(path: Path, folder: Path, options: argparse.Namespace) -> Path:
    """The model itself if it is quantised, else a quantised copy in `folder`."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = onnx.load(path)
    if any(node.op_type in QUANTISED for node in model.graph.node):
        return path
    prepared, done = folder / "prepared.onnx", folder / "quantised.onnx"
    model.ir_version = max(8, model.ir_version)  # in which weights need not be inputs as well
    model = onnx.version_converter.convert_version(model, max(13, model.opset_import[0].version))
    weights = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    onnx.save(model, prepared)
    quant_pre_process(prepared, prepared, skip_symbolic_shape=True)
    if options.dynamic:
        quantize_dynamic(prepared, done, weight_type=QuantType.QInt8)
    else:
        quantize_static(
            prepared,
            done,
            _Inputs(onnx.load(prepared)),
            quant_format=QuantFormat.QDQ,
            per_channel=not options.whole,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    return done


def exact_runner(path: Path, feed: dict[str, np.ndarray], threads: int) -> Callable[[], object]:
    """A function that runs the model in ONNX Runtime with products that do not saturate.

    Each operator gets constants of int8 of its own, because ONNX Runtime refuses some that are shared. Raises
    RuntimeError if it refuses the model even so.
    """
    model = onnx.load(path)
    constants = {t.name: t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8}
    for number, node in enumerate(model.graph.node):
        for place, name in enumerate(node.input):
            if name in constants:
                own = model.graph.initializer.add()
                own.CopyFrom(constants[name])
                own.name = node.input[place] = f"{name}/{number}/{place}"
    try:
        session = open_session(model.SerializeToString(), session_options(threads=threads))
    except Exception as error:  # ONNX Runtime's exception classes have no public base
        raise RuntimeError(str(error)) from error
    known = {i.name for i in session.get_inputs()}
    arguments = {name: value for name, value in feed.items() if name in known}
    return lambda: session.run(None, arguments)


def measure(name: str, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Times of one network in milliseconds by runner, and the sizes of the model and the bundle in bytes."""
    row: dict[str, Any] = {"name": name, "threads": threads, "ms": {}}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        path, shapes = locate(name, folder)
        path, bundle = quantised(path, folder, options), folder / "m.hcb"
        targets = [options.target] if options.target else []
        compile_model(path, bundle, devices="CPU,ORT", shapes=shapes, cpu_targets=targets)
        row["model"], row["bundle"] = path.stat().st_size, bundle.stat().st_size
        with open_bundle(bundle) as opened:
            golden = opened.manifest.golden
            assert golden is not None, "the bundle has no golden vectors"
            feed = {n: opened.array(member).copy() for n, member in golden.inputs.items()}
        with load(bundle, threads=threads) as session:
            runners = [
                ("heterocc", lambda: session.run(feed)),
                ("onnxruntime", onnxruntime_runner(path, feed, threads)),
            ]
            for peer, runner in (("exact", exact_runner), ("openvino", openvino_runner)):
                try:
                    runners.append((peer, runner(path, feed, threads)))
                except (ImportError, RuntimeError) as error:
                    row[peer] = str(error).splitlines()[0]
            for timing in interleave(runners, options.seconds * len(runners), None):
                row["ms"][timing.name] = {"min": timing.percentile(0), "median": timing.percentile(50)}
    ours = row["ms"]["heterocc"]["min"]
    row["ratio"] = row["ms"]["onnxruntime"]["min"] / ours
    row["exact_ratio"] = row["ms"]["exact"]["min"] / ours if "exact" in row["ms"] else float("nan")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--threads", default="1,2", help="thread counts, with commas")
    parser.add_argument("--seconds", type=float, default=2.0, help="per network and runner")
    parser.add_argument("--dynamic", action="store_true", help="quantise weights, and data as it comes")
    parser.add_argument("--whole", action="store_true", help="one scale for each weight, not for each of its channels")
    parser.add_argument("--target", help="the CPU to compile for, such as x86-64-v3 (default: this one)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "quantised.json")
    options = parser.parse_args()
    heads = "".join(f"{name:>10}" for name in ("ours ms", "ORT", "exact", "OpenVINO"))
    print(f"{'network':<41}{'th':>2}{heads}{'ratio':>8}{'exact':>8}{'model MB':>10}{'bundle':>8}")
    rows = []
    for name in options.names:
        for threads in map(int, options.threads.split(",")):
            os.environ["TVM_NUM_THREADS"] = str(threads)
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                row = pool.submit(measure, name, threads, options).result()
            rows.append(row)
            times = [row["ms"].get(r, {}).get("min") for r in ("heterocc", "onnxruntime", "exact", "openvino")]
            cells = "".join(f"{t:>10.3f}" if t is not None else f"{'-':>10}" for t in times)
            sizes = f"{row['model'] / 1e6:>10.1f}{row['bundle'] / 1e6:>8.1f}"
            ratios = f"{row['ratio']:>8.2f}{row['exact_ratio']:>8.2f}"
            print(f"{name[-40:]:<41}{threads:>2}{cells}{ratios}{sizes}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
