"""The process that compiles a partition's kernels from the last one on: see second_process.py.

It reads requests, each a JSON object in one line: code whose programs the driver builds, a bundle whose kernels run
until the next request, or nothing.
"""

from __future__ import annotations

import contextlib
import json
import select
from collections.abc import Callable
from io import FileIO

import numpy as np

from heterocc.runtime import load
from heterocc.runtime.execute import executable
from heterocc.runtime.plan.schedule import Space


def main() -> None:
    """Serve the requests on standard input until it ends."""
    lines = FileIO(0)  # unbuffered, so that `select` knows of each line

    def stop() -> bool:
        return bool(select.select([lines], [], [], 0)[0])

    while line := lines.readline():
        request = json.loads(line)
        # Whatever is wrong with the code, the process that checks it says so.
        with contextlib.suppress(Exception):
            if "code" in request:
                executable.load_library(request["code"], "p0", Space(request["backend"], request["index"]))
            elif "bundle" in request and not stop():
                rehearse(request["bundle"], stop)


def rehearse(path: str, stop: Callable[[], bool]) -> None:
    """Run the kernels of a bundle on zeros, the last one first, until `stop` is true."""
    with load(path) as session:
        session.rehearse({v.name: np.zeros(v.shape, v.dtype) for v in session.inputs}, stop)


if __name__ == "__main__":
    main()
