"""Search for requests that end a run in any way but a typed error or ONNX Runtime's result.

    python -m tests.hostile --requests 100000 --devices CPU --output build/hostile.json

Small models of every operator, whose sizes are symbolic, get requests that do not fit: sizes off by one, zero, huge or
exchanged, and values out of range. Inputs, and tensors of a run, end at pages without access, and new memory is filled,
so that a read outside of an array ends the process or changes the result. heterocc and ONNX Runtime run in processes of
their own. `--devices GIVEN` has ONNX Runtime run each model as it was given, as if heterocc refused it, with the checks
of such models. `--operator` searches only some operators, `--mixtures 300` drawn models of several nodes in place of
them, `--part 2/4` a part of the models; `--seed` gives other requests, and other mixtures.
`--save FOLDER --name MODEL --number 12` writes a model and a request, as a report names them, to files, and `--again
FILE` runs the requests again that were defects in an earlier search's file.
The file is written after each model, and a search continues where its file ends. The status is 1 if there are defects
that `known.py` does not name.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.files.writing import atomic_write
from tests.hostile.cases import NAMINGS, HostileModel, bases, hostile_models, namings
from tests.hostile.known import explained
from tests.hostile.mixed import mixtures, named_mixture
from tests.hostile.requests import request
from tests.hostile.search import DEFECTS, Finding, Search, Totals


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hostile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--requests", type=int, default=100_000, help="how many, spread over the models (100000)")
    option("--devices", default="CPU", help="a list of devices, as in `heterocc compile --devices`; or GIVEN")
    option("--operator", action="append", default=[], help="only this one, such as Pad or com.microsoft::QGemm")
    option("--naming", action="append", default=[], choices=NAMINGS, help="only models of this naming")
    option("--models", type=int, default=3, help="at most so many of an operator, before they get names (3)")
    option("--mixtures", type=int, default=0, help="so many models of several nodes, drawn by the seed")
    option("--part", default="1/1", help="the part of the models, such as 2/4")
    option("--seed", type=int, default=0)
    option("--seconds", type=float, default=float("inf"), help="end after so many")
    option("--output", type=Path, help="the file to write, and to continue")
    option("--again", type=Path, help="only the defects of this file")
    option("--save", type=Path, help="only write model.onnx and request.npz to this folder")
    option("--name", help="the model to save")
    option("--number", type=int, default=0, help="the request to save")
    asked = parser.parse_args(arguments)
    if asked.save is not None:
        return save(asked.save, asked.name, asked.number, asked.seed)
    if asked.again is not None:
        models, numbers = defective(asked.again)
    elif asked.mixtures:
        models, numbers = list(mixtures(asked.mixtures, asked.seed)), {}
    else:
        models, numbers = hostile_models(asked.models, asked.operator, asked.naming or NAMINGS), {}
    if not models:
        parser.error("there is no such model")
    number, parts = map(int, asked.part.split("/"))
    models = models[number - 1 :: parts]
    totals, done = _continued(asked.output)
    wanted = asked.requests // parts
    end = time.monotonic() + asked.seconds
    with Search(asked.devices, asked.seed) as search:
        for index, model in enumerate(models, 1):
            if time.monotonic() > end:
                break
            if model.name in done:
                continue
            # What models did not take that were refused, the others get.
            share = max(1, -(-(wanted - totals.requests) // (len(models) - len(done))))
            search_model(search, model, numbers.get(model.name, range(share)), totals)
            done.append(model.name)
            if asked.output is not None:
                text = json.dumps(
                    {"devices": asked.devices, "seed": asked.seed, **totals.to_json(), "done": done}, indent=1
                )
                atomic_write(asked.output, text + "\n")
            if index % 50 == 0:
                print(f"{index}/{len(models)} models: {_counts(totals.verdicts)}", flush=True)
    print(table(totals))
    return 1 if any(f.verdict in DEFECTS and not explained(f) for f in totals.findings) else 0


def defective(path: Path) -> tuple[list[HostileModel], Mapping[str, Sequence[int]]]:
    """The models of a file that had defects, and the numbers of their requests."""
    numbers: dict[str, list[int]] = {}
    operators, mixed = set(), {}
    for finding in json.loads(path.read_text(encoding="utf-8"))["findings"]:
        if finding["verdict"] in DEFECTS:
            numbers.setdefault(finding["model"], []).append(max(0, finding["number"]))
            model = named_mixture(finding["model"])
            if model is None:
                operators.add(finding["operator"])
            else:
                mixed[model.name] = model
    found = [*mixed.values()]
    found += [m for operator in sorted(operators) for base in bases()[operator] for m in namings(base)]
    return [m for m in found if m.name in numbers], numbers


def save(folder: Path, name: str, number: int, seed: int) -> int:
    """Write a model and a request of it."""
    single = (m for of_it in bases().values() for base in of_it for m in namings(base) if m.name == name)
    model = named_mixture(name) or next(single)
    asked = request(replace(model.valid, seed=seed), number)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.model)
    np.savez(folder / "request.npz", **asked.feed)
    print(f"{folder}: {asked.what}: " + ", ".join(f"{n} {a.dtype}{list(a.shape)}" for n, a in asked.feed.items()))
    return 0


def search_model(search: Search, model: HostileModel, numbers: Sequence[int], totals: Totals) -> None:
    """These requests of one model."""
    totals.models += 1
    seen: Counter[str] = Counter()
    for finding, code in search.run(model, numbers):
        totals.add(finding, code)
        if finding.verdict in ("crash", "timeout"):
            seen[finding.verdict] += 1
            # Each costs a compile: enough is known of this model.
            if seen.total() == 3:
                break


def _continued(path: Path | None) -> tuple[Totals, list[str]]:
    """The totals and models of a file of an earlier search."""
    if path is None or not path.exists():
        return Totals(), []
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    totals = Totals(
        found["requests"],
        found["models"],
        Counter(found["verdicts"]),
        {name: Counter(count) for name, count in found["operators"].items()},
        Counter(found["codes"]),
        [Finding(**f) for f in found["findings"]],
    )
    return totals, found["done"]


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def table(totals: Totals) -> str:
    """The outcome in words: verdicts, codes of errors, and the first of the defects of each operator and verdict."""
    lines = [f"{totals.requests} requests of {totals.models} models", ""]
    lines += [f"{count:8d}  {name}" for name, count in totals.verdicts.most_common()]
    lines += ["", "errors: " + _counts(totals.codes), "", "Operators of which not all requests had a reference:"]
    for operator, verdicts in totals.operators.items():
        if verdicts["no reference"] or verdicts["not compiled"] == verdicts.total():
            compiled = verdicts.total() - verdicts["not compiled"]
            lines.append(f"    {operator}: {compiled - verdicts['no reference']} of {compiled}")
    lines.append("")
    first: dict[tuple[str, str], list[Finding]] = {}
    for finding in totals.findings:
        if finding.verdict in DEFECTS:
            first.setdefault((finding.operator, finding.verdict), []).append(finding)
    for (operator, verdict), found in sorted(first.items()):
        one = found[0]
        reason = explained(one)
        lines += [
            f"{operator}: {len(found)} {verdict}" + (f" (known: {reason})" if reason else ""),
            f"    {one.model} request {one.number}: {one.what}",
            f"    ours: {one.ours}",
            f"    ONNX Runtime: {one.reference}",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
