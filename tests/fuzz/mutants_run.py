"""Opens mutants of a bundle in a process with limits: `mutants_run.py BUNDLE WHAT FIRST COUNT FOLDER`.

WHAT is `look` (open, inspect, check every hash and whether it can run), `look-members` or `run` (load and run as well).
Prints how many were refused and how many were taken; anything but a typed error, more memory or time than the limits
ends the process. The number of the mutant at work is in FOLDER/at.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.errors import HeteroccError, InternalError
from heterocc.artifacts.reader import open_bundle
from heterocc.runtime import load
from heterocc.runtime.cli import reports
from heterocc.runtime.cli.reports import check_bundle, print_bundle
from heterocc.runtime.machine import ort_trial
from tests.fuzz.mutations import Mutator

SECONDS = 20
MEMORY = 4 * 2**30
DATA = (".npy", ".bin", ".txt", ".dot", ".onnx")


def look(path: Path) -> None:
    """All that promises to be safe on any bytes."""
    with open_bundle(path) as bundle:
        bundle.manifest.model_dump(mode="json")
        print_bundle(bundle, plan=True, members=True, kernels=True)
        for member in (*(bundle.manifest.golden.inputs if bundle.manifest.golden else {}).values(),):
            bundle.array(member)
    check_bundle(path)


def run(path: Path) -> None:
    """Load and run on zeros, and on the golden inputs if there are any."""
    with load(path) as session:
        feed: dict[str, Any] = {}
        for info in session.inputs:
            shape = tuple(d or 1 for d in info.shape or ())
            if np.prod(shape, dtype=np.float64) > 2**24:
                return
            feed[info.name] = np.zeros(shape, info.dtype if info.dtype in np.sctypeDict else object)
        session.run(feed)


def forked_trial(path: str | os.PathLike[str], digest: str) -> dict[str, str]:
    """The result of `ort_trial.refusals`, from a fork instead of a new interpreter, which takes a second per mutant."""
    reader, writer = os.pipe()
    sys.stdout.flush()  # or the child would write it once more
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        signal.alarm(SECONDS)
        try:
            ort_trial._main(os.fspath(path), digest)
            sys.stdout.flush()
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    try:
        found: dict[str, str] = json.loads(text)
    except ValueError:
        return {"": "ONNX Runtime ends the process"}
    return found


def main() -> None:
    import onnxruntime  # noqa: F401  (once, for all forks)

    reports.refusals = forked_trial  # type: ignore[attr-defined]
    bundle, what, first, count, folder = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:5]), Path(sys.argv[5])
    real = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what `inspect` prints
    refused = 0
    if what != "run":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for number in range(first, first + count):
        (folder / "at").write_text(str(number), encoding="ascii")
        path = folder / "mutant.hcb"
        mutator = Mutator(bundle, number)
        if what == "look-members" or (what == "run" and number % 3 == 0):
            data = DATA if what == "run" else ("",)
            mutator.members(path, lambda name, data=data: name.endswith(data))  # type: ignore[misc]
        else:
            mutator.manifest(path)
        signal.alarm(SECONDS)  # ends the process: a hang is a failure
        try:
            look(path)
            if what == "run":
                run(path)
        except HeteroccError as error:
            if isinstance(error, InternalError):
                raise
            refused += 1
            str(error).encode("utf-8", "surrogatepass")
        signal.alarm(0)
    os.write(real, f"{refused} of {count}\n".encode())


if __name__ == "__main__":
    main()
