"""Networks for images of any height and width on the CPU, against ONNX Runtime and against code for one size.

Usage: python benchmarks/networks/images.py [--threads 1,2] [--seconds 1] [--keep FOLDER] [SIZE …]
SIZE is height x width, such as 224x224. SqueezeNet is compiled once for all sizes and once for each. All runners take
turns, with a pause between. `--keep` is a folder for bundles, which are not compiled again if they are there. Prints
minima and writes benchmarks/results/images.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import load  # noqa: E402
from heterocc.runtime.cli.bench import interleave, onnxruntime_runner  # noqa: E402
from tests import models  # noqa: E402

SIZES = ("224x224", "320x240", "100x120")
INPUT = "data_0"


def any_size(folder: Path) -> Path:
    """SqueezeNet whose input has a dynamic height and width."""
    model = onnx.load(models.light("squeezenet"))
    (given,) = [i for i in model.graph.input if i.name == INPUT]
    for dim, name in zip(given.type.tensor_type.shape.dim[2:], ("height", "width"), strict=True):
        dim.dim_param = name
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    path = folder / "squeezenet.onnx"
    onnx.save(model, path)
    return path


def compiled(model: Path, bundle: Path, dims: dict[str, int]) -> Path:
    """The bundle, compiled for the CPU unless it is there."""
    if not bundle.exists():
        compile_model(model, bundle, devices="CPU", dims=dims)
    return bundle


def row(model: Path, folder: Path, size: str, threads: int, seconds: float) -> dict[str, Any]:
    """Times of one size, and the ratios of the others' to ours."""
    height, width = map(int, size.split("x"))
    every = compiled(model, folder / "any.hcb", {})
    one = compiled(model, folder / f"{size}.hcb", {"height": height, "width": width})
    feed = {INPUT: np.random.default_rng(0).standard_normal((1, 3, height, width), np.float32)}
    with load(every, threads=threads) as dynamic, load(one, threads=threads) as fixed:
        peer = onnxruntime_runner(model, feed, threads)
        np.testing.assert_allclose(next(iter(dynamic.run(feed).values())), peer()[0], rtol=1e-3, atol=1e-5)  # type: ignore[index]
        runners = [
            ("any size", lambda: dynamic.run(feed)),
            ("this size", lambda: fixed.run(feed)),
            ("onnxruntime", peer),
        ]
        ms = {t.name: t.percentile(0) for t in interleave(runners, seconds * len(runners), None)}
    return {"size": size, "threads": threads, "ms": ms}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=SIZES)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    print(f"{'size':<12}{'threads':>8}{'any size':>10}{'this size':>11}{'ORT':>9}{'ORT/ours':>10}")
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        model = any_size(folder)
        for size in given.sizes:
            for threads in map(int, given.threads.split(",")):
                one = row(model, folder, size, threads, given.seconds)
                found.append(one)
                ours, fixed, peer = one["ms"].values()
                print(f"{size:<12}{threads:>8}{ours:>10.3f}{fixed:>11.3f}{peer:>9.3f}{peer / ours:>10.2f}", flush=True)
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    (out / "images.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
