"""Resident memory of loading and running a model beside ONNX Runtime's, each in a fresh process.

Usage: python benchmarks/runtime/memory.py [--runs 5] [--threads 2] [--bundle FILE] [NAME …]
NAME is as in benchmarks/networks/cpu.py; the default is resnet50. `--bundle` names the bundle of the only model, to
save the compile. Prints a table and writes benchmarks/results/memory.json.

Figures in MB: `peak` is the most that was resident at once, `end` what is resident after the runs, and
`private` the part of it that no file backs (anonymous pages; weights mapped from the bundle are the other part, which
the system can drop and processes share). `import` is resident after the imports alone, before anything is loaded;
`added` is the peak without it. A ratio is ours over ONNX Runtime's: below 1 is less.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ("peak", "added", "end", "private")


def mapped() -> dict[str, float]:
    """Resident and private (anonymous) MB of this process."""
    found = {}
    for text in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, value = text.split(":")
        found[name] = int(value.split()[0]) / 1024
    return {"end": found["Rss"], "private": found["Anonymous"]}


def peak() -> float:
    """The most MB that were resident in this process so far.

    Not ru_maxrss, which includes the memory of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


def run_ours(bundle: str, feed: dict[str, Any], threads: int, runs: int) -> dict[str, float]:
    """Load a bundle and run it."""
    from heterocc.runtime import load

    before = mapped()["end"]
    with load(bundle, threads=threads) as session:
        for _ in range(runs):
            session.run(feed)
        return {"import": before, "peak": peak(), **mapped()}


def run_peer(model: str, feed: dict[str, Any], threads: int, runs: int) -> dict[str, float]:
    """Create ONNX Runtime's session and run it."""
    import onnxruntime

    before = mapped()["end"]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for _ in range(runs):
        session.run(None, feed)
    return {"import": before, "peak": peak(), **mapped()}


def child(kind: str, path: str, feed: str, threads: int, runs: int) -> None:
    """What the fresh process does: prints its figures."""
    import numpy as np

    with np.load(feed) as arrays:
        inputs = {name: arrays[name] for name in arrays.files}
    found = (run_ours if kind == "heterocc" else run_peer)(path, inputs, threads, runs)
    print(json.dumps({**found, "added": found["peak"] - found["import"]}))


def measure(name: str, bundle: Path | None, threads: int, runs: int) -> dict[str, Any]:
    """The figures of both runners."""
    import numpy as np

    from benchmarks.networks.cpu import locate
    from heterocc.artifacts.reader import open_bundle
    from heterocc.compiler import compile_model

    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        path, shapes = locate(name, folder)
        if bundle is None:
            bundle = folder / "m.hcb"
            compile_model(path, bundle, devices="CPU", shapes=shapes)
        with open_bundle(bundle) as opened:
            golden = opened.manifest.golden
            assert golden is not None, "the bundle has no golden vectors"
            np.savez(folder / "feed.npz", **{n: opened.array(m) for n, m in golden.inputs.items()})
        mb: dict[str, dict[str, float]] = {}
        for kind, file in (("heterocc", bundle), ("onnxruntime", path)):
            command = [sys.executable, __file__, "--child", kind, str(file), str(folder / "feed.npz")]
            command += [str(threads), str(runs)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            mb[kind] = json.loads(done.stdout)
        ratios = {f"ratio_{figure}": mb["heterocc"][figure] / mb["onnxruntime"][figure] for figure in FIGURES}
        sizes = {"model_mb": path.stat().st_size / 2**20, "bundle_mb": bundle.stat().st_size / 2**20}
        return {"model": name, **sizes, "mb": mb, **ratios}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        kind, path, feed, threads, runs = sys.argv[2:]
        child(kind, path, feed, int(threads), int(runs))
        return
    sys.path.insert(0, str(ROOT))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["resnet50"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "memory.json")
    options = parser.parse_args()
    print(f"{'model':<25}{'MB':>6}" + "".join(f"{figure:>9}{'ORT':>7}{'ratio':>7}" for figure in FIGURES))
    rows = []
    for name in options.names:
        row = measure(name, options.bundle, options.threads, options.runs)
        rows.append(row)
        ours, peer = row["mb"]["heterocc"], row["mb"]["onnxruntime"]
        cells = [f"{ours[f]:>9.0f}{peer[f]:>7.0f}{row[f'ratio_{f}']:>7.2f}" for f in FIGURES]
        print(f"{Path(name).stem[-24:]:<25}{row['model_mb']:>6.0f}{''.join(cells)}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": platform.machine(), "cases": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
