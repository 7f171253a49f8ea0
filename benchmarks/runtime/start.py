"""From the start of a process to its first result: with nothing cached, and again; ONNX Runtime's start beside it.

Usage: python benchmarks/runtime/start.py [--devices VULKAN,OPENCL,CPU] [--rounds 5] [--runtime PYTHON] [MODEL …]
MODEL is a light network (squeezenet), an .onnx file, or a bundle, which is not compiled then and is compared with the
.onnx file beside it if there is one; the default is four light networks. PYTHON is the interpreter of an environment
with heterocc-runtime alone (`make wheels` makes one), whose starts are further rows, marked `alone`.

Each start is a process of its own with a cache folder of its own, where drivers keep what they compile too: empty for
`cold`, as the first process left it for `second`. `binaries` is a cold start of a bundle that holds OpenCL's binaries.
The least of the rounds counts; the goal is for `second`. `cpu` is processor time, which a busy machine inflates less.
Prints a table and writes benchmarks/results/start.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

DEFAULT = ("squeezenet", "shufflenet", "resnet50", "densenet121")
GOAL = 1.0
"""Seconds from the start of the second process to its first result."""

HETEROCC = """
import json, sys, time
start = time.time()
import numpy as np
from heterocc.runtime import load
imported = time.time()
session = load(sys.argv[1])
loaded = time.time()
feed = {i.name: np.zeros([d or 1 for d in i.shape], i.dtype) for i in session.inputs}
session.run(feed)
first = time.time()
session.run(feed)
print(json.dumps([start, imported, loaded, first, time.time()]))
"""

ONNXRUNTIME = """
import json, sys, time
start = time.time()
import numpy as np
import onnxruntime
imported = time.time()
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
loaded = time.time()
feed = {i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape], "float32") for i in session.get_inputs()}
session.run(None, feed)
first = time.time()
session.run(None, feed)
print(json.dumps([start, imported, loaded, first, time.time()]))
"""


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds: `total` from before the process to its first result, and what it consists of; `run` is a later run.

    `cpu` is processor time of the whole process, the later run and its end included.
    """

    total: float
    cpu: float
    python: float
    imports: float
    load: float
    first: float
    run: float


@dataclass
class Row:
    """One model on one device; `device` is None for ONNX Runtime."""

    model: str
    device: str | None
    alone: bool = False
    second: list[Start] = field(default_factory=list)
    cold: Start | None = None
    binaries: Start | None = None

    @property
    def best(self) -> Start:
        """The fastest of the later starts."""
        return min(self.second, key=lambda s: s.total)


def processor_time() -> float:
    """Seconds that ended child processes have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start(program: str, path: Path, cache: Path, python: str = sys.executable) -> Start:
    """Start one process. Raises SystemExit with what it said."""
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), "HETEROCC_CACHE": str(cache / "heterocc")}
    env.pop("POCL_CACHE_DIR", None)
    spent = processor_time()
    before = time.time()
    done = subprocess.run([python, "-c", program, str(path)], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{path.name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    begun, imported, loaded, first, second = json.loads(done.stdout.splitlines()[-1])
    cpu = processor_time() - spent
    return Start(
        first - before, cpu, begun - before, imported - begun, loaded - imported, first - loaded, second - first
    )


def compiled(model: Path, devices: str, output: Path, *properties: str) -> Path:
    """A bundle for one device without the CPU variant, compiled in a process of its own."""
    command = [sys.executable, "-m", "heterocc.compiler.cli", "compile", str(model), "-o", str(output), "--quiet"]
    command += ["--devices", devices, "--no-cpu-variant", *(f"--property={p}" for p in properties)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{model.name} for {devices}: {done.stderr.strip()}")
    return output


def listed(device: str) -> str:
    """The list of devices of a bundle for a device, with the CPU behind it."""
    return device if device == "CPU" else f"{device},CPU"


def model_path(name: str) -> Path:
    if name.endswith(".onnx"):
        return Path(name)
    from tests import models

    return models.light(name)


def measure(names: list[str], devices: list[str], rounds: int, folder: Path, runtime: str | None) -> list[Row]:
    """All rows; later starts take turns, so that a busy machine is busy for all."""
    rows: list[tuple[Row, str, Path, Path, str]] = []
    pythons = [sys.executable, *([] if runtime is None else [runtime])]
    for name in names:
        if name.endswith(".hcb"):
            cache = folder / f"cache-{Path(name).stem}"
            for python in pythons:
                rows.append((Row(Path(name).stem, "as built", python == runtime), HETEROCC, Path(name), cache, python))
            if Path(name).with_suffix(".onnx").is_file():
                model = Path(name).with_suffix(".onnx")
                rows.append((Row(model.stem, None), ONNXRUNTIME, model, folder / "cache-onnxruntime", sys.executable))
            continue
        model = model_path(name)
        for device in devices:
            print(f"{name} on {device} …", file=sys.stderr)
            bundle = compiled(model, listed(device), folder / f"{model.stem}-{device}.hcb")
            row, cache = Row(name, device), folder / f"cache-{model.stem}-{device}"
            row.cold = start(HETEROCC, bundle, cache)
            if device == "OPENCL":
                output = folder / f"{model.stem}-{device}-binaries.hcb"
                with_binaries = compiled(model, listed(device), output, f"{device}.binaries=on")
                row.binaries = start(HETEROCC, with_binaries, folder / f"cache-{model.stem}-binaries")
            rows.append((row, HETEROCC, bundle, cache, sys.executable))
            if runtime is not None:
                rows.append((Row(name, device, alone=True), HETEROCC, bundle, cache, runtime))
        rows.append((Row(name, None), ONNXRUNTIME, model, folder / "cache-onnxruntime", sys.executable))
    for _ in range(rounds):
        for row, program, path, cache, python in rows:
            row.second.append(start(program, path, cache, python))
    return [row for row, *_ in rows]


def table(rows: list[Row]) -> str:
    """The rows as text."""
    head = ("seconds", "cold", "binaries", "second", "cpu", "python", "imports", "load", "first run", "later run")
    lines = [f"{head[0]:<28}" + "".join(f"{h:>10}" for h in head[1:])]
    for row in rows:
        best = row.best
        cold = "" if row.cold is None else f"{row.cold.total:.2f}"
        binaries = "" if row.binaries is None else f"{row.binaries.total:.2f}"
        parts = (best.cpu, best.python, best.imports, best.load, best.first, best.run)
        over = " over the goal" if row.device is not None and best.total > GOAL else ""
        label = f"{row.model} {row.device or 'ONNX Runtime'}{' alone' if row.alone else ''}"
        lines.append(
            f"{label:<28}{cold:>10}{binaries:>10}{best.total:>10.2f}" + "".join(f"{p:>10.3f}" for p in parts) + over
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(DEFAULT))
    parser.add_argument("--devices", default="VULKAN,OPENCL,CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runtime", metavar="PYTHON", help="interpreter of an environment with heterocc-runtime alone")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "start.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heterocc-start-") as folder:
        rows = measure(options.models, options.devices.split(","), options.rounds, Path(folder), options.runtime)
    print(table(rows))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
