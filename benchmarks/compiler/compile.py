"""Time of `heterocc compile` with nothing cached, and again: wall time and processor time of the whole process.

Usage: python benchmarks/compiler/compile.py [--devices CPU] [--shape NAME=1,3,224,224] [NAME …]
NAME is as in benchmarks/networks/cpu.py: a light network (resnet50), a row of tests/models.toml, a network of
tests/networks.py, or an .onnx file. The default is the networks of benchmarks/networks/cpu.py.

Each compile is a process of its own with a cache folder of its own, where drivers keep what they compile too: empty for
`cold`, as the first process left it for `second`. Python's own cache of modules is full, as after an installation. The
last columns are the wall times of the stages of the cold compile; the rest is the start of Python, and imports.
Prints a table and writes benchmarks/results/compile.json.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.networks.cpu import NETWORKS, REAL, locate  # noqa: E402

STAGES = ("import", "query", "partition", "lower", "check", "pack")
"""Stages of a compile that the table shows."""


@dataclass(frozen=True, slots=True)
class Compile:
    """Seconds of one process: wall time, processor time of it and its children, and wall times of its stages."""

    wall: float
    cpu: float
    stages: dict[str, float]


def processor_time() -> float:
    """Seconds that ended child processes have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compiled(arguments: Sequence[str], cache: Path, modules: Path) -> Compile:
    """Compile in a process with this cache. Raises SystemExit with what the process said."""
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), "HETEROCC_CACHE": str(cache / "heterocc")}
    env["PYTHONPYCACHEPREFIX"] = str(modules)
    for name in ("PYTHONDONTWRITEBYTECODE", "POCL_CACHE_DIR"):
        env.pop(name, None)
    command = [sys.executable, "-m", "heterocc.compiler.cli", "compile", *arguments, "--json"]
    spent, before = processor_time(), time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    wall = time.perf_counter() - before
    if done.returncode != 0:
        raise SystemExit(f"{arguments[0]}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    stages = {name: round(seconds, 3) for name, seconds in json.loads(done.stdout)["seconds"].items()}
    return Compile(round(wall, 2), round(processor_time() - spent, 2), stages)


def fill(modules: Path) -> None:
    """Compile the modules of heterocc and of TVM for Python, as an installation does, into this folder."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(modules)}
    own = [str(ROOT / name) for name in ("artifacts", "compiler", "passes", "packaging")]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *own], env=env, check=True)
    # Modules of packages: all that is imported.
    imports = "import benchmarks.networks.cpu, heterocc.compiler.pipeline.compile, heterocc.compiler.lower.cpu.lowering"
    env["PYTHONDONTWRITEBYTECODE"] = ""
    subprocess.run([sys.executable, "-c", imports], env=env, cwd=ROOT, check=True)


def measure(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Compile]:
    """A cold compile and a second one."""
    path, shapes = locate(name, folder)
    arguments = [str(path), "-o", str(folder / "model.hcb"), "--devices", options.devices]
    asked = options.shape or [f"{value}={','.join(map(str, shape))}" for value, shape in shapes.items()]
    arguments += [word for text in asked for word in ("--shape", text)]
    with tempfile.TemporaryDirectory(prefix="cache-", dir=folder) as cache:
        return {start: compiled(arguments, Path(cache), folder / "modules") for start in ("cold", "second")}


def line(name: str, found: dict[str, Compile]) -> str:
    """A row of the table."""
    cold, second = found["cold"], found["second"]
    seconds = (cold.wall, cold.cpu, second.wall, second.cpu, *(cold.stages.get(stage, 0.0) for stage in STAGES))
    return f"{Path(name).stem[-30:]:<31}" + "".join(f"{s:>10.2f}" for s in seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*NETWORKS, *REAL])
    parser.add_argument("--devices", default="CPU")
    parser.add_argument(
        "--shape", action="append", metavar="NAME=SHAPE", help="in place of those of benchmarks/networks/cpu.py"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "compile.json")
    options = parser.parse_args()
    heads = ("cold", "cpu", "second", "cpu", *STAGES)
    print(f"{'seconds':<31}" + "".join(f"{head:>10}" for head in heads))
    rows: dict[str, dict[str, Compile]] = {}
    with tempfile.TemporaryDirectory(prefix="heterocc-compile-") as text:
        fill(Path(text) / "modules")
        for name in options.names:
            rows[name] = measure(name, options, Path(text))
            print(line(name, rows[name]), flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    cases = {name: {start: asdict(found) for start, found in row.items()} for name, row in rows.items()}
    machine = {"devices": options.devices, "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0]}
    options.out.write_text(json.dumps({**machine, "cases": cases}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
