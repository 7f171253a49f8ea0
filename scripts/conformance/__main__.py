"""Run ONNX's node tests on a list of devices and write their outcomes as JSON.

    python -m scripts.conformance --devices CPU --output cpu.json

`--part 2/4` runs the second quarter of the cases; a file that exists keeps its other cases. `--resume` leaves out the
cases that the file has, to continue a run that ended early. `--only` selects cases by a regular expression.
`--rest cpu.json` is for a list with a further device at its end, on which the cases that pass without it have the same
code: their outcomes are copied.
`--listed docs/operators.md` compiles only the cases that the page lists as not passing on these devices, and takes its
word for the others, of which ONNX Runtime's outcomes are determined again: minutes in place of an hour after a change
that makes more cases pass.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.conformance.cases import node_cases
from scripts.conformance.outcome import Outcome, outcome, reference_outcome
from scripts.conformance.page import not_passed

from heterocc.artifacts.files.writing import atomic_write

_CASES_A_WRITE = 20
"""The file is written after so many cases, and at the end."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m scripts.conformance", description=__doc__)
    parser.add_argument("--devices", default="CPU", help="a list of devices, as in `heterocc compile --devices`")
    parser.add_argument("--part", default="1/1", help="the part of the cases to run, such as 2/4")
    parser.add_argument("--only", default="", help="a regular expression that names of cases contain")
    parser.add_argument("--rest", type=Path, help="a file of outcomes: run only the cases that do not pass there")
    parser.add_argument("--listed", type=Path, help="a page: compile only the cases that it lists as not passing")
    parser.add_argument("--resume", action="store_true", help="run only the cases that the file of --output lacks")
    parser.add_argument("--output", type=Path, help="the file to write; without it the outcomes are printed")
    options = parser.parse_args(arguments)
    number, parts = map(int, options.part.split("/"))
    cases = [case for name, case in node_cases().items() if re.search(options.only, name)][number - 1 :: parts]
    found: dict[str, Any] = {}
    if options.output is not None and options.output.exists():
        found = json.loads(options.output.read_text(encoding="utf-8"))["cases"]
    if options.resume:
        cases = [case for case in cases if case.name not in found]
    if options.rest is not None:
        before = json.loads(options.rest.read_text(encoding="utf-8"))["cases"]
        passed = {name: case for name, case in before.items() if case["outcome"] == "passed"}
        found = {**passed, **found}
        cases = [case for case in cases if case.name not in passed]
    failing = None
    if options.listed is not None:
        failing = not_passed(options.listed.read_text(encoding="utf-8"), options.devices)
    for index, case in enumerate(cases, 1):
        known = failing is not None and case.name not in failing
        ours = Outcome("passed") if known else outcome(case, options.devices)
        reference = reference_outcome(case)
        found[case.name] = {
            "operator": case.operator,
            "numbers": case.of_numbers,
            "outcome": ours.kind,
            "code": ours.code,
            "reason": ours.reason,
            "onnxruntime": reference.kind,
            "onnxruntime_reason": reference.reason,
        }
        if options.output is None:
            print(case.name, ours.kind, ours.code, ours.reason)
        elif index % _CASES_A_WRITE == 0 or index == len(cases):
            text = json.dumps({"devices": options.devices, "cases": dict(sorted(found.items()))}, indent=1)
            atomic_write(options.output, text + "\n")
    print(summary(found))


def summary(found: dict[str, Any]) -> str:
    """The counts of outcomes, and of those that ONNX Runtime passes."""
    every = Counter(case["outcome"] for case in found.values())
    shared = Counter(case["outcome"] for case in found.values() if case["onnxruntime"] == "passed" and case["numbers"])
    return (
        f"{len(found)} cases: {_counts(every)}; of {shared.total()} of tensors of numbers that ONNX Runtime passes: "
        f"{_counts(shared)}"
    )


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "wrong", "refused", "failed"))


if __name__ == "__main__":
    main()
