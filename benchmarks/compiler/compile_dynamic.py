"""What the compile of a model with dynamic sizes costs, beside one of the same model with its sizes fixed.

Usage: python benchmarks/compiler/compile_dynamic.py [--only NAME,…] [--devices CPU] [--limit SECONDS] [COMPILE OPTIONS]
The models are those of benchmarks/dynamic_sizes/models.toml; the fixed sizes are the second of their three sets.

Each compile is a process of its own with an empty cache. Prints processor seconds of the process (beside other work
they say more than wall time), wall seconds, and the most memory beyond the size of the model, for both, then the ratio
of the processor seconds, and at last the geometric mean of the ratios. `--json` writes all of it to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from math import exp, log
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.dynamic_sizes.limits import Ended, run_limited  # noqa: E402
from benchmarks.dynamic_sizes.models import Model, catalogue  # noqa: E402
from tests.models import ModelUnavailableError  # noqa: E402


def shape_options(model: Model) -> list[str]:
    """The options that fix the sizes, found by another process: the memory of this one counts as a compile's."""
    command = [sys.executable, "-m", "benchmarks.dynamic_sizes.inputs", str(model.path()), json.dumps(model.sizes[1])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return list(map(str, json.loads(done.stdout)))


def compiled(model: Model, fixed: bool, options: argparse.Namespace) -> Ended:
    """A compile with an empty cache."""
    with tempfile.TemporaryDirectory(prefix="heterocc-compile-") as folder:
        command = [sys.executable, "-m", "heterocc.compiler.cli", "compile", str(model.path())]
        command += ["-o", str(Path(folder) / "model.hcb"), "--devices", options.devices, *options.more]
        command += shape_options(model) if fixed else []
        os.environ["HETEROCC_CACHE"] = str(Path(folder) / "cache")
        return run_limited(command, options.limit, options.memory)


def cells(ended: Ended, megabytes: float) -> str:
    """The columns of one compile, with the reason of one that failed."""
    if ended.output is None:
        return f"  {ended.reason[:26]:>26}"
    return f"{ended.processor:>10.1f}{ended.seconds:>8.1f}{ended.megabytes - megabytes:>10.0f}"


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of models.toml that contain one of these texts")
    parser.add_argument("--devices", default="CPU")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a compile")
    parser.add_argument("--memory", type=float, default=12.0, help="gigabytes of address space of a compile")
    parser.add_argument("--json", type=Path)
    options, options.more = parser.parse_known_args()
    found: dict[str, dict[str, object]] = {}
    ratios: list[float] = []
    heads = f"{'cpu s':>10}{'wall s':>8}{'MB more':>10}"
    print(f"{'':<30}{'dynamic:':>10}{'':>18}{'fixed:':>10}\n{'':<30}{heads}{heads}{'ratio':>8}")
    for model in catalogue():
        if not any(text in model.name for text in options.only.split(",")):
            continue
        try:
            size = model.path().stat().st_size / 1e6
        except ModelUnavailableError as error:
            print(f"{model.name}: {error}")
            continue
        both = [compiled(model, fixed, options) for fixed in (False, True)]
        ratio = ""
        if all(ended.output is not None for ended in both):
            ratios.append(both[0].processor / both[1].processor)
            ratio = f"{ratios[-1]:>8.2f}"
        print(f"{model.name[-29:]:<30}{cells(both[0], size)}{cells(both[1], size)}{ratio}", flush=True)
        found[model.name] = {"megabytes": size, "dynamic": asdict(both[0]), "fixed": asdict(both[1])}
    if ratios:
        print(f"geometric mean of {len(ratios)} ratios: {exp(sum(map(log, ratios)) / len(ratios)):.2f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
