"""The process that compiles a bundle's kernels from the last one on: see second_process.py.

It reads lines: the path of a bundle to begin with, and an empty line to stop.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable
from io import FileIO

import numpy as np

from heterocc.runtime import load
from heterocc.runtime.execute import executable


def main() -> None:
    """Rehearse each bundle that standard input names, until the next line."""
    executable.builds = False  # the last kernels first, so that the other process finds the code that it comes to last
    lines = FileIO(0)  # unbuffered, so that `select` knows of each line

    def stop() -> bool:
        return bool(select.select([lines], [], [], 0)[0])

    while line := lines.readline():
        path = line.decode().strip()
        if path and not stop():
            # Whatever is wrong with the bundle, the process that checks it says so.
            with contextlib.suppress(Exception):
                rehearse(path, stop)


def rehearse(path: str, stop: Callable[[], bool]) -> None:
    """Run the kernels of a bundle on zeros, the last one first."""
    with load(path) as session:
        session.rehearse({v.name: np.zeros(v.shape, v.dtype) for v in session.inputs}, stop)


if __name__ == "__main__":
    main()
