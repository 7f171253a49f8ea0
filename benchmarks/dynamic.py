"""One bundle for all sizes of a model's dynamic dimensions, beside code for each size and ONNX Runtime.

Usage: python benchmarks/dynamic.py MODEL.onnx [--hint batch=1,8] [--threads 1,2] [--seconds 1] [--keep FOLDER]
                                    [--compile-only] SIZE …
SIZE gives every dynamic dimension a size: batch=4, or batch=1,sequence=128. The model is compiled for the CPU once as
it comes, once with `--hint` if that is given, and once for each SIZE (`--dim`). All results are compared with ONNX
Runtime's, then all runners take turns, with pauses between. `--keep` is a folder for bundles, which are not compiled
again if they are there; `--compile-only` ends when they are.

Prints minima in milliseconds, the times of the bundle for all sizes and of the hinted one over that of code for the
size, and ONNX Runtime's time over that of the bundle for all sizes; writes benchmarks/results/dynamic.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from heterocc.compiler.driver import compile_model  # noqa: E402
from heterocc.runtime import load  # noqa: E402
from heterocc.runtime.cli.bench import interleave, onnxruntime_runner  # noqa: E402
from tests import models  # noqa: E402

Dims = dict[str, int]


def parsed(size: str) -> Dims:
    """`batch=1,sequence=128` as a dictionary."""
    return {name: int(value) for name, value in (part.split("=") for part in size.split(","))}


def hint_sizes(hint: str) -> dict[str, tuple[int, ...]]:
    """`batch=1,8` as the sizes of a dimension."""
    name, _, sizes = hint.partition("=")
    return {name: tuple(map(int, sizes.split(",")))}


def feed_of(model: Path, dims: Dims) -> dict[str, Any]:
    """Seeded inputs of these sizes."""
    graph = onnx.load(model, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    shapes = {
        given.name: tuple(dims[d.dim_param] if d.dim_param else d.dim_value for d in given.type.tensor_type.shape.dim)
        for given in graph.input
        if given.name not in constants
    }
    return models.feeds(model, shapes)


class Bundles:
    """The bundles of a model, compiled when they are first asked for."""

    def __init__(self, model: Path, folder: Path, hints: list[str]) -> None:
        self._model, self._folder = model, folder
        self._hints = {name: sizes for hint in hints for name, sizes in hint_sizes(hint).items()}
        self._hinted = "+".join(hints)

    def any_size(self) -> Path:
        """For all sizes."""
        return self._compiled("any")

    def hinted(self, dims: Dims) -> Path | None:
        """For all sizes, with code for those of the hints; None if these sizes are not among them."""
        if not self._hints or any(dims[name] not in sizes for name, sizes in self._hints.items()):
            return None
        return self._compiled(self._hinted, hints=self._hints)

    def of(self, dims: Dims) -> Path:
        """For one size."""
        return self._compiled(",".join(f"{name}={size}" for name, size in dims.items()), dims=dims)

    def _compiled(self, name: str, **options: Any) -> Path:
        bundle = self._folder / f"{self._model.stem}-{name}.hcb"
        if not bundle.exists():
            compile_model(self._model, bundle, devices="CPU", **options)
        return bundle


def measure(model: Path, bundles: Bundles, dims: Dims, threads: int, seconds: float) -> dict[str, float]:
    """Minima in milliseconds by runner."""
    feed = feed_of(model, dims)
    files = {"any size": bundles.any_size(), "hinted": bundles.hinted(dims), "this size": bundles.of(dims)}
    peer = onnxruntime_runner(model, feed, threads)
    expected = peer()
    with ExitStack() as stack:
        runners: list[tuple[str, Callable[[], object]]] = []
        for name, file in files.items():
            if file is not None:
                session = stack.enter_context(load(file, threads=threads))
                for ours, theirs in zip(session.run(feed).values(), expected, strict=True):  # type: ignore[call-overload]
                    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 * max(1e-3, np.abs(theirs).max()))
                runners.append((name, lambda session=session: session.run(feed)))  # type: ignore[misc]
        runners.append(("onnxruntime", peer))
        return {t.name: t.percentile(0) for t in interleave(runners, seconds * len(runners), None)}


def line(size: str, threads: int, ms: dict[str, float]) -> str:
    """A row of the table."""
    times = [f"{ms[r]:>10.3f}" if r in ms else f"{'-':>10}" for r in ("any size", "hinted", "this size", "onnxruntime")]
    over = [f"{ms[r] / ms['this size']:>8.3f}" if r in ms else f"{'-':>8}" for r in ("any size", "hinted")]
    return f"{size:<28}{threads:>3}{''.join(times)}{''.join(over)}{ms['onnxruntime'] / ms['any size']:>8.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("sizes", nargs="+")
    parser.add_argument("--hint", action="append", default=[], help="as of `heterocc compile`")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=1.0, help="per size and runner")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--compile-only", action="store_true")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bundles = Bundles(given.model, folder, given.hint)
        for size in given.sizes if given.compile_only else ():
            for file in (bundles.any_size(), bundles.hinted(parsed(size)), bundles.of(parsed(size))):
                print(file)
        if given.compile_only:
            return
        print(f"{given.model.stem:<28}{'th':>3}{'any':>10}{'hinted':>10}{'this':>10}{'ORT':>10}{'any/':>8}{'hinted/':>8}"
              f"{'ORT/any':>8}")  # fmt: skip
        for size in given.sizes:
            for threads in map(int, given.threads.split(",")):
                ms = measure(given.model, bundles, parsed(size), threads, given.seconds)
                rows.append({"model": given.model.stem, "size": size, "threads": threads, "ms": ms})
                print(line(size, threads, ms), flush=True)
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    (out / "dynamic.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
