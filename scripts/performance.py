"""Write docs/performance.md from the figures in benchmarks/figures, and take figures from the results of benchmarks.

    python scripts/performance.py                                         writes the page
    python scripts/performance.py --check                                 exits with 1 if the page is not up to date
    python scripts/performance.py --take benchmarks/results/cpu.json --as networks-zen5 --machine "two cores of …"

A file of figures is one table: the question that it answers, title, machine, date, command, and rows. The kind
`runners` has a row for each case and number of threads with the figure of every runner, ours first; ratios and their
geometric means are computed here, and `summary_only` leaves only these. `plain` is printed as it is. `--take` replaces
the rows, machine and date of a table of runners by what benchmarks/networks/cpu.py, quantised.py or dynamic.py wrote.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "benchmarks" / "figures"
PAGE = ROOT / "docs" / "performance.md"

HEAD = """# Performance

What heterocc's bundles take beside other runtimes, in the same run: runners take turns, and each figure is the least
of its runs unless a table says otherwise. A ratio is the time of the better peer over ours: **above 1 ours is faster**.
Every result was compared with ONNX Runtime's before it was timed. The machines are shared, so ratios mean more than
milliseconds; single ones vary by a tenth.

`heterocc bench model.onnx --against onnxruntime,openvino` answers these questions for your model on your machine.
Each table names its machine, date and command. This page is made by `scripts/performance.py` from
`benchmarks/figures`; how figures came about, what was tried and what failed is in the repository under `docs/log`.
"""

QUESTIONS = {
    "cpu-networks": (
        "How fast is a network on the CPU?",
        "Float32, batch 1, fixed sizes. Least is gained where a peer is as close to the processor's multiply-add peak "
        "as ours (resnet50, bert_base, vit_base: 86 to 98 % of it).",
    ),
    "operators": ("And a single operator?", "Small, middle, large and odd sizes of the kinds that networks have."),
    "dynamic": (
        "What if sizes are dynamic?",
        "Models from PyPI packages, as they come, by `heterocc compile model.onnx`: our code, ONNX Runtime's, or both, "
        "what took least when it was compiled. A size that is used often can have code of its own (`--hint batch=8`).",
    ),
    "quantised": (
        "And quantised?",
        "Networks of onnxruntime.quantization. Products of bytes are exact; without VNNI ONNX Runtime's are not, "
        "unless asked.",
    ),
    "half-precision": ("In half precision?", ""),
    "recurrent": (
        "Recurrent layers?",
        "A layer that is a loop over the rows of a tensor is a Scan with its inputs' product before it.",
    ),
    "trees": ("Tree ensembles?", ""),
    "decoding": (
        "A language model, token by token?",
        "A token reads all weights: both runtimes wait for memory. Weights of 2, 4 and 8 bits in blocks keep their "
        "bits on the CPU ([language models](decoding.md)).",
    ),
    "gpu": (
        "A GPU?",
        "Only the H200's table is from a GPU. We lose resnet50: its maps of 14x14 and 7x7 give too few work groups "
        "for 132 multiprocessors.",
    ),
    "start": ("How long until the first result?", "A cold start compiles for the driver; a CPU bundle has none."),
    "memory": ("How much memory?", "Weights are mapped from the bundle, so that processes share them."),
    "callers": ("Many callers?", ""),
    "compile": ("How long does a compile take?", ""),
    "placement": ("How good and how fast is placement?", ""),
}
"""The questions in the order of the page, each with what is to know about its tables."""

Row = Sequence[Any]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--take", type=Path, help="the JSON file that a benchmark wrote")
    parser.add_argument("--as", dest="name", help="the table, a file in benchmarks/figures without .json")
    parser.add_argument("--machine", help="what it ran on, such as 'two cores of a virtual AMD Zen 5 machine'")
    options = parser.parse_args()
    if options.take is not None:
        take(options.take, FIGURES / f"{options.name}.json", options.machine)
    text = page(tables())
    if options.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


def tables() -> list[dict[str, Any]]:
    """All tables of figures, by their file's name."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(FIGURES.glob("*.json"))]


def page(found: Sequence[dict[str, Any]]) -> str:
    """The page. Raises ValueError for a table of an unknown question."""
    unknown = {table["question"] for table in found} - set(QUESTIONS)
    if unknown:
        raise ValueError(f"no question {', '.join(sorted(unknown))}: add it to QUESTIONS")
    parts = [HEAD]
    for question, (title, text) in QUESTIONS.items():
        of_question = [table for table in found if table["question"] == question]
        if of_question:
            parts.append("\n".join([f"## {title}", *(["", textwrap.fill(text, 120)] if text else []), ""]))
            runners = [table for table in of_question if table["kind"] == "runners"]
            if len(runners) > 1:
                parts.append(summary(runners))
            parts += [section(table) for table in of_question if not table.get("summary_only")]
    return "\n".join(parts)


def summary(of_question: Sequence[dict[str, Any]]) -> str:
    """A line for each table: geometric mean and least ratio by number of threads."""
    counts = sorted({row[1] for table in of_question for row in table["rows"]})
    lines = []
    for table in of_question:
        cells = [spread([r for r in map(ratio, of_threads(table, count)) if r is not None]) for count in counts]
        lines.append([table["title"], table["machine"], *cells])
    heads = [f"{count} thread{'s' * (count > 1)}: mean ratio, least" for count in counts]
    return markdown(["", "machine", *heads], lines)


def section(table: dict[str, Any]) -> str:
    """One table with its machine, date and command."""
    title = table["title"][0].upper() + table["title"][1:]
    where = textwrap.fill(f"{title}: {table['machine']}, {table['date']}, `{table['command']}`.", 120)
    if table["kind"] == "plain":
        return f"{where}\n\n{markdown(table['columns'], table['rows'])}"
    counts = sorted({row[1] for row in table["rows"]})
    unit = table["unit"]
    heads = [f"{count} thread{'s' * (count > 1)}, {unit}: {', '.join(table['runners'])}" for count in counts]
    titles = ["", *(head for h in heads for head in (h, "ratio"))]
    lines = []
    for name in dict.fromkeys(row[0] for row in table["rows"]):
        cells = [name]
        for count in counts:
            row = next((r for r in of_threads(table, count) if r[0] == name), None)
            cells += ["", ""] if row is None else [", ".join(map(shown, row[2:])), two(ratio(row))]
        lines.append(cells)
    means = [two(mean([r for r in map(ratio, of_threads(table, count)) if r is not None])) for count in counts]
    lines.append(["geometric mean", *(cell for found in means for cell in ("", found))])
    return f"{where}\n\n{markdown(titles, lines)}"


def of_threads(table: dict[str, Any], count: int) -> Iterator[Row]:
    """The rows of so many threads."""
    return (row for row in table["rows"] if row[1] == count)


def ratio(row: Row) -> float | None:
    """The least figure of the peers over ours."""
    peers = [figure for figure in row[3:] if figure is not None]
    return min(peers) / row[2] if peers and row[2] else None


def mean(ratios: Sequence[float]) -> float | None:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def spread(ratios: Sequence[float]) -> str:
    """Geometric mean and least."""
    return f"{two(mean(ratios))}, {two(min(ratios))}" if ratios else ""


def two(value: float | None) -> str:
    """A ratio with two decimals."""
    return "" if value is None else f"{value:.2f}"


def shown(value: float | None) -> str:
    """A figure with three digits, or a dash where the runner refuses the case."""
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def markdown(titles: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A table."""
    rows = [titles, ["---"] * len(titles), *lines]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def take(source: Path, target: Path, machine: str | None) -> None:
    """Replace the rows, machine and date of a table of runners by the results of a benchmark."""
    table = json.loads(target.read_text(encoding="utf-8"))
    if table["kind"] != "runners":
        raise SystemExit(f"{target} is not a table of runners")
    table["rows"] = rows_of(json.loads(source.read_text(encoding="utf-8")), len(table["runners"]))
    table["machine"] = machine or table["machine"]
    table["date"] = f"{datetime.date.today():%-d %B %Y}"
    write(target, table)


def write(target: Path, table: dict[str, Any]) -> None:
    """Write a table with a line for each row."""
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in table["rows"])
    head = json.dumps({**table, "rows": []}, ensure_ascii=False, indent=1)
    target.write_text(head.replace('"rows": []', f'"rows": [\n{rows}\n ]') + "\n", encoding="utf-8")


def rows_of(results: Any, runners: int) -> list[list[Any]]:
    """Rows of case, threads and the least milliseconds of each runner, ours first; cases that failed are left out."""
    cases = results if isinstance(results, list) else results.get("cases", results.get("rows", []))
    found = []
    for case in cases:
        times = {name: ms["min"] if isinstance(ms, dict) else ms[0] for name, ms in case.get("ms", {}).items()}
        ours = times.pop("heterocc", times.pop("default", None))
        if ours is None:
            continue
        peers = [times.get(name) for name in ("onnxruntime", "openvino", "genai")][: runners - 1]
        figures = [None if t is None else float(f"{t:.3g}") for t in (ours, *peers)]
        name = case["name"] if "name" in case else f"{case['model']}, {case['size']}"
        found.append([name, case["threads"], *figures])
    return found


if __name__ == "__main__":
    sys.exit(main())
