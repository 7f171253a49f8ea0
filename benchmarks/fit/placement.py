"""The constants by which placement compares our code with ONNX Runtime, fitted to a table of `networks/dynamic.py`.

Usage: python benchmarks/fit/placement.py RESULTS.json …

Each file is the `results.json` of a folder of `--keep`, with rows of the bundle `CPU` on one thread. For each row both
runs are estimated at its sizes, for shares of the CPU's FLOP/s and launches of nodes in a grid. Prints the constants
whose estimates are nearest to the measured ratios, those of compiler/placement/machine.py, how far both are (the mean
factor), and how often the estimate would choose what was faster. Rows that differ by less than 5 % agree either way.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.dynamic_sizes.models import catalogue  # noqa: E402
from heterocc.compiler.devices.names import resolve_devices  # noqa: E402
from heterocc.compiler.importer.pipeline import import_model  # noqa: E402
from heterocc.compiler.placement import machine as constants  # noqa: E402
from heterocc.compiler.placement.machine import build_machine  # noqa: E402

NOISE = 1.05
SHARES = (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0)
LAUNCHES = (0.1e-6, 0.2e-6, 0.5e-6, 1e-6, 1.5e-6, 2e-6, 3e-6, 5e-6)


@dataclass(frozen=True)
class Row:
    """A measured row: seconds of arithmetic and of traffic of each node, and ONNX Runtime's time over ours."""

    name: str
    arithmetic: np.ndarray
    traffic: np.ndarray
    ratio: float

    def estimate(self, share: float, cpu: float, ort: float) -> float:
        """The estimated ratio for a share of the FLOP/s and launches of nodes."""
        ours = float(np.maximum(self.arithmetic, self.traffic).sum()) + cpu * len(self.arithmetic)
        theirs = float(np.maximum(self.arithmetic / share, self.traffic).sum()) + ort * len(self.arithmetic)
        return (theirs + constants.ORT_OVERHEAD) / ours

    def agrees(self, estimate: float) -> bool:
        """Whether the estimate chooses what was faster, or both are about as fast."""
        return max(self.ratio, 1 / self.ratio) < NOISE or (self.ratio > 1) == (estimate > 1)


def rows_of(path: Path) -> list[Row]:
    """The rows of a table that have a time of the bundle CPU on one thread."""
    models = {model.name: model for model in catalogue()}
    devices, _ = resolve_devices("CPU")
    found = []
    for row in json.loads(path.read_text())["rows"].values():
        times, model = row.get("ms", {}), models.get(row.get("model"))
        if model is None or row.get("threads") != 1 or "CPU" not in times:
            continue
        sizes = next((s for s in model.sizes if _text(s) == row["size"]), None)
        imported = import_model(model.path(), keep_dims=True, assume=True)
        if sizes is None or imported.symbols is None:
            continue
        named: dict[str, int] = {}
        for name in imported.graph.inputs:
            shapes = zip(imported.graph.values[name].shape or (), imported.input_shape(name) or (), strict=False)
            named.update((d, sizes[known]) for d, known in shapes if isinstance(d, str) and known in sizes)
        at = imported.at(named)
        machine = build_machine(at, devices, {"CPU": {}})
        (device,) = machine.devices
        values = at.graph.values
        moved = [sum(values[v].nbytes for v in (*dict.fromkeys(n.inputs), *n.outputs)) for n in at.graph.nodes]
        work = [machine.work.get(n.name, 0.0) for n in at.graph.nodes]
        found.append(
            Row(
                row["model"],
                np.array(work) / device.flops,
                np.array(moved) / device.bandwidth,
                times["onnxruntime"][0] / times["CPU"][0],
            )
        )
    return found


def _text(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" if len(name) < 10 else str(size) for name, size in sizes.items())


def main() -> None:
    """Read, fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    rows = [row for path in parser.parse_args().results for row in rows_of(path)]

    def error(choice: tuple[float, float, float]) -> float:
        return sum(abs(log(row.estimate(*choice) / row.ratio)) for row in rows) / len(rows)

    own = constants.ORT_FLOPS, constants._LAUNCH["cpu"], constants._LAUNCH["ort"]
    best = min(itertools.product(SHARES, LAUNCHES, LAUNCHES), key=error)
    for title, choice in (("fitted", best), ("machine.py", own)):
        right = sum(row.agrees(row.estimate(*choice)) for row in rows)
        print(
            f"{title}: share of FLOP/s {choice[0]}, launches of {choice[1] * 1e6:g} and {choice[2] * 1e6:g} us: "
            f"off by a factor of {exp(error(choice)):.2f}, agrees in {right} of {len(rows)}"
        )
    for row in rows:
        if not row.agrees(row.estimate(*best)):
            print(f"  {row.name}: measured {row.ratio:.2f}, estimated {row.estimate(*best):.2f}")


if __name__ == "__main__":
    main()
