"""CUDA bundles made on one machine and run on another: right numbers, and times.

Usage: python benchmarks/networks/cuda.py pack FOLDER [--arch sm_90] [MODEL …]  where TVM and ONNX are; needs no GPU
       python benchmarks/networks/cuda.py run FOLDER [--seconds 2]              where the GPU is; needs heterocc.runtime
MODEL is a light network (squeezenet) or a row of tests/models.toml; `--nodes` adds one of ONNX's node tests for each
operator. `run` compares with the outputs of ONNX Runtime that the bundles hold, prints a table, writes
FOLDER/cuda.json, and exits with 1 if a result is wrong. With everything on one machine, `python
benchmarks/networks/latency.py --devices CUDA,CPU` compares times with ONNX Runtime in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ("squeezenet", "shufflenet", "resnet50", "inception_v2", "densenet121", "vgg19")


def pack(folder: Path, arch: str, names: list[str], nodes: bool) -> int:
    """Compile bundles into a folder; what cannot be compiled is said and left out."""
    sys.path.insert(0, str(ROOT))
    from heterocc.artifacts.errors import HeteroccError
    from heterocc.compiler import compile_model
    from heterocc.compiler.devices.device import TargetDevice
    from tests import models
    from tests.differential import test_node_tests

    folder.mkdir(parents=True, exist_ok=True)
    device = TargetDevice("CUDA", "cuda", target={"kind": "cuda", "arch": arch}, present=False, unit="discrete")
    work: list[tuple[str, Path, dict[str, Any], str]] = []
    for name in names:
        row = models.rows()[name] if name.endswith(".onnx") else None
        path = models.light(name) if row is None else models.real(name)
        work.append((name, path, {} if row is None else dict(row.shapes), "CUDA,CPU"))
    cases = test_node_tests.everything() if nodes else {}
    for case in [cases[name] for name in test_node_tests.one_for_each_operator(cases)] if nodes else []:
        path = folder / f"{case.name.replace(' ', '-')}.onnx"
        path.write_bytes(case.model.SerializeToString())
        work.append((path.stem, path, {n: a.shape for n, a in case.feed.items()}, "CUDA"))
    for name, path, shapes, devices in work:
        try:
            bundle = folder / f"{name}.hcb"
            report = compile_model(path, bundle, devices=devices, device_files=(device,), shapes=shapes)
            print(f"{name}: {report.summary}")
        except HeteroccError as error:
            print(f"{name}: {error.message}")
    return 0


def run(folder: Path, seconds: float) -> int:
    """Load every bundle of a folder on its GPU, compare, and time."""
    rows = [check(path, seconds) for path in sorted(folder.glob("*.hcb"))]
    for row in rows:
        times = f"{row['min_ms']:>10.3f}{row['median_ms']:>10.3f}" if "min_ms" in row else f"{'-':>10}{'-':>10}"
        print(f"{row['name']:<60}{times}  {row['outcome']}")
    wrong = [row for row in rows if row["outcome"] != "right"]
    print(f"{len(rows) - len(wrong)} of {len(rows)} right")
    (folder / "cuda.json").write_text(json.dumps(rows, indent=2) + "\n")
    return 1 if wrong or not rows else 0


def check(path: Path, seconds: float) -> dict[str, Any]:
    """One bundle's row: right or what is wrong, and milliseconds per run if it ran."""
    from heterocc.artifacts.errors import HeteroccError
    from heterocc.runtime import load

    row: dict[str, Any] = {"name": path.stem}
    began = time.perf_counter()
    try:
        with load(path) as session:
            row["load_ms"] = 1e3 * (time.perf_counter() - began)
            if "CUDA" not in session.devices:
                return row | {"outcome": "; ".join(session.notes)}
            golden = session.bundle.manifest.golden
            if golden is None:
                return row | {"outcome": "the bundle has no golden vectors"}
            feed = {name: np.array(session.bundle.array(member)) for name, member in golden.inputs.items()}
            results = session.run(feed)
            for name, member in golden.outputs.items():
                expected = session.bundle.array(member)
                if not np.allclose(results[name], expected, rtol=golden.rtol, atol=golden.atol, equal_nan=True):
                    difference = np.abs(results[name].astype(np.float64) - expected).max()
                    return row | {"outcome": f"{name} differs by up to {difference:.3g}"}
            times: list[float] = []
            until = time.perf_counter() + seconds
            while time.perf_counter() < until or len(times) < 5:
                start = time.perf_counter()
                session.run(feed)
                times.append(1e3 * (time.perf_counter() - start))
    except HeteroccError as error:
        return row | {"outcome": error.message}
    return row | {"outcome": "right", "min_ms": min(times), "median_ms": float(np.median(times))}


def main() -> int:
    """Pack or run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=list(DEFAULT))
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--nodes", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    if options.what == "pack":
        return pack(options.folder, options.arch, options.models, options.nodes)
    return run(options.folder, options.seconds)


if __name__ == "__main__":
    raise SystemExit(main())
