"""Products with weights of 4 and 8 bits in blocks (MatMulNBits), beside ONNX Runtime.

Usage: python benchmarks/operators/blocked_products.py [--rows 1,4,32,128] [--threads 1,2] [--seconds 1] [--levels 0,4]
A model has several products of one input with weights of their own, more than a cache holds: ONNX Runtime keeps equal
weights once. Results are compared with its, then both take turns.

Prints minima in milliseconds, ONNX Runtime's time over ours, the gigabytes of codes and scales that we read in a second
for one row, and the size of the bundle over the model's; writes benchmarks/results/blocked_products.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.runtime import load
from heterocc.runtime.cli.bench import interleave, onnxruntime_runner

ROOT = Path(__file__).resolve().parents[2]
SIZES = ((4864, 896, 12), (4096, 4096, 4))
"""Columns, terms, and products in a model."""
KINDS = ((4, 32), (4, 128), (8, 32))
"""Bits, and the size of a block."""


def products(columns: int, terms: int, count: int, bits: int, block: int, level: int) -> onnx.ModelProto:
    """A model of some products of any number of rows."""
    random, blocks = np.random.default_rng(0), terms // block
    arrays, nodes = [], []
    for n in range(count):
        codes = random.integers(0, 256, (columns, blocks, block * bits // 8), np.uint8)
        scales = random.uniform(0.001, 0.01, columns * blocks).astype(np.float32)
        arrays += [numpy_helper.from_array(codes, f"w{n}"), numpy_helper.from_array(scales, f"s{n}")]
        sizes = {"K": terms, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
        nodes.append(
            helper.make_node("MatMulNBits", ["x", f"w{n}", f"s{n}"], [f"y{n}"], domain="com.microsoft", **sizes)
        )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", terms])
    results = [helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, ["rows", columns]) for n in range(count)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "products", [x], results, arrays)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def measure(case: tuple[Any, ...], folder: Path, rows: list[int], threads: list[int], seconds: float) -> list[Any]:
    """A row for each number of rows and threads."""
    (columns, terms, count), (bits, block), level = case
    path, bundle, found = folder / "m.onnx", folder / "m.hcb", []
    onnx.save(products(columns, terms, count, bits, block, level), path)
    compile_model(path, bundle, devices="CPU")
    size = bundle.stat().st_size / path.stat().st_size
    name = f"{count} of {terms} x {columns}, {bits} bits, blocks of {block}, level {level}"
    for number, of in itertools.product(rows, threads):
        feed = {"x": np.random.default_rng(number).standard_normal((number, terms)).astype(np.float32)}
        peer = onnxruntime_runner(path, feed, of)
        with load(bundle, threads=of) as session:
            for got, wanted in zip(session.run(feed).values(), peer(), strict=True):
                np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-3 * np.abs(wanted).max())
            runners = [("heterocc", partial(session.run, feed)), ("onnxruntime", peer)]
            ms = {t.name: t.percentile(0) for t in interleave(runners, 2 * seconds, None)}
        read = count * columns * terms * (bits / 8 + 4 / block) / ms["heterocc"] / 1e6
        found.append({"name": f"{name}, {number} rows", "threads": of, "ms": {n: {"min": t} for n, t in ms.items()}})
        print(
            f"{name:<56}{number:>6}{of:>3}{ms['heterocc']:>10.3f}{ms['onnxruntime']:>10.3f}"
            f"{ms['onnxruntime'] / ms['heterocc']:>7.2f}{read if number == 1 else float('nan'):>8.1f}{size:>8.3f}",
            flush=True,
        )
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,4,32,128")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--levels", default="0,4")
    parser.add_argument("--seconds", type=float, default=1.0, help="per row and runner")
    given = parser.parse_args()
    rows, threads, levels = ([int(n) for n in text.split(",")] for text in (given.rows, given.threads, given.levels))
    found: list[Any] = []
    print(f"{'':<56}{'rows':>6}{'th':>3}{'ms':>10}{'ORT':>10}{'ratio':>7}{'GB/s':>8}{'bundle':>8}")
    for case in itertools.product(SIZES, KINDS, levels):
        with tempfile.TemporaryDirectory() as folder:
            found += measure(case, Path(folder), rows, threads, given.seconds)
    ratios = [row["ms"]["onnxruntime"]["min"] / row["ms"]["heterocc"]["min"] for row in found]
    print(f"geometric mean: ONNX Runtime's time {np.exp(np.log(ratios).mean()):.2f} of ours")
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    (out / "blocked_products.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
