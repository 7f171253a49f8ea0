"""Matrix products of dynamic sizes, beside code for each size and ONNX Runtime.

Usage: python benchmarks/operators/dynamic_products.py [TEXT …] [--threads 1,2] [--seconds 0.5] [--keep FOLDER]
Generated models (benchmarks/operators/cases/dynamic_products.py) whose names contain one of the texts, all by default.
Each is compiled for the CPU as it comes and for each of its sizes. Results are compared with ONNX Runtime's, then all
three take turns, with pauses between. `--keep` is a folder for bundles, which are not compiled again if they are there.

Prints minima in milliseconds, the time for all sizes over that of code for the size, ONNX Runtime's time over ours,
and the time of the compile for all sizes over that for one; writes benchmarks/results/dynamic_products.json.
"""

from __future__ import annotations

import argparse
import json
import os
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

from benchmarks.operators.cases.dynamic_products import SizedCase, sized_products  # noqa: E402
from benchmarks.operators.cases.models import Builder  # noqa: E402
from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import load  # noqa: E402
from heterocc.runtime.cli.bench import interleave, onnxruntime_runner  # noqa: E402


def compiled(model: Path, bundle: Path, **options: Any) -> float | None:
    """Compile a model unless its bundle is there; returns the seconds of processor time it took."""
    if bundle.exists():
        return None
    start = time.process_time()
    compile_model(model, bundle, devices="CPU", **options)
    return time.process_time() - start


def compiled_once(folder: Path) -> None:
    """Load what a process loads with its first compile."""
    net = Builder((3, 4))
    onnx.save(net.model(net.op("MatMul", "x0", net.weight(4, 5))), folder / "first.onnx")
    compiled(folder / "first.onnx", folder / "first.hcb")


def feed_of(model: onnx.ModelProto, dims: dict[str, int]) -> dict[str, Any]:
    """Seeded inputs of these sizes."""
    random = np.random.default_rng(0)
    shapes = {
        given.name: [dims[d.dim_param] if d.dim_param else d.dim_value for d in given.type.tensor_type.shape.dim]
        for given in model.graph.input
    }
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def measure(case: SizedCase, folder: Path, threads: list[int], seconds: float) -> list[dict[str, Any]]:
    """A row for each size and number of threads."""
    stem = "".join(c if c.isalnum() else "-" for c in case.name)
    path, model, rows = folder / f"{stem}.onnx", case.build(), []
    onnx.save(model, path)
    any_size = folder / f"{stem}-any.hcb"
    took = compiled(path, any_size)
    for sizes in case.sizes:
        dims = dict(zip(case.dims, sizes, strict=True))
        one = folder / f"{stem}-{'x'.join(map(str, sizes))}.hcb"
        took_one, feed = compiled(path, one, dims=dims), feed_of(model, dims)
        for count in threads:
            peer: Callable[[], Any] = onnxruntime_runner(path, feed, count)
            (expected,) = peer()
            with ExitStack() as stack:
                ours = [stack.enter_context(load(f, threads=count)) for f in (any_size, one)]
                for session in ours:
                    (result,) = session.run(feed).values()
                    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
                runners: list[tuple[str, Callable[[], object]]]
                runners = [(name, partial(s.run, feed)) for name, s in zip(("any", "one"), ours, strict=True)]
                timings = interleave([*runners, ("ort", peer)], 3 * seconds, None)
            ms = {t.name: t.percentile(0) for t in timings}
            ratio = None if took is None or took_one is None else took / took_one
            rows.append({"case": case.name, "sizes": sizes, "threads": count, "ms": ms, "compile": ratio})
            print(
                f"{case.name:<32}{'x'.join(map(str, sizes)):>8}{count:>3}{ms['any']:>10.4f}{ms['one']:>10.4f}"
                f"{ms['ort']:>10.4f}{ms['any'] / ms['one']:>8.2f}{ms['ort'] / ms['any']:>8.2f}"
                f"{'-' if ratio is None else f'{ratio:.2f}':>9}",
                flush=True,
            )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=0.5, help="per size and runner")
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not given.keep:
            os.environ["HETEROCC_CACHE"] = str(folder / "cache")  # compiles that kept nothing
        compiled_once(folder)
        titles = ("any", 10), ("one", 10), ("ORT", 10), ("any/one", 8), ("ORT/any", 8), ("compile", 9)
        print(f"{'':<32}{'size':>8}{'th':>3}{''.join(f'{title:>{width}}' for title, width in titles)}")
        for case in sized_products():
            if not given.texts or any(text in case.name for text in given.texts):
                rows += measure(case, folder, [int(n) for n in given.threads.split(",")], given.seconds)
    if rows:
        ratios = [(r["ms"]["any"] / r["ms"]["one"], r["ms"]["ort"] / r["ms"]["any"]) for r in rows]
        over_one, faster = np.exp(np.log(ratios).mean(axis=0))
        print(f"geometric means: {over_one:.2f} of code for the size, ONNX Runtime's time {faster:.2f} of ours")
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    (out / "dynamic_products.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
