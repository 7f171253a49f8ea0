"""A program that runs bundles in eight threads, with PoCL and lavapipe simulated as devices with separate memory.

    python discrete_run.py ROUNDS ARRAYS FAULTS BUNDLE …

ARRAYS is an .npz file with, for each bundle by number, inputs `x<i>` and results `y<i>` with a row for each thread.
FAULTS is `-`, or `opencl=copy:1;opencl=copy:2`: one run with each, and eight threads again at the end. Prints JSON: the
errors, whether memory was allocated after as many runs as threads, how many copies Vulkan was given, and how many the
first OpenCL device was given by runs. Without faults the threads share two sessions.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import tvm_ffi

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime import Session, load
from heterocc.runtime.native import opencl_api, vulkan_api

THREADS = 8


def hammer(
    session: Session, given: np.ndarray, expected: np.ndarray, rounds: int, threads: int, twin: Session | None = None
) -> list[list[str]]:
    """Errors of `rounds` runs in each thread, every other on `twin`; raises if a number is wrong."""
    gate = threading.Barrier(threads)
    name = session.inputs[0].name

    def caller(number: int) -> list[list[str]]:
        errors = []
        gate.wait()
        for _ in range(rounds):
            try:
                used = session if twin is None or number % 2 else twin
                (found,) = used.run({name: given[number]}).values()
            except HeteroccError as error:
                errors.append([type(error).__name__, error.message])
            else:
                np.testing.assert_allclose(found, expected[number], rtol=1e-4, atol=1e-5)
        return errors

    with ThreadPoolExecutor(threads) as pool:
        return [error for errors in pool.map(caller, range(threads)) for error in errors]


def opencl_copied() -> int:
    """The number of copies on the first OpenCL device so far."""
    return opencl_api.statistics().copies


def main() -> None:
    rounds, arrays, faults, *bundles = sys.argv[1:]
    errors: list[list[str]] = []
    grew = False
    opencl_copies = 0
    with np.load(arrays) as found:
        samples = [(found[f"x{i}"], found[f"y{i}"]) for i in range(len(bundles))]
    for bundle, (given, expected) in zip(bundles, samples, strict=True):
        with load(bundle, threads=1) as session:
            if faults == "-":
                with load(bundle, threads=1) as twin:
                    copied = opencl_copied()
                    errors += hammer(session, given, expected, int(rounds), THREADS, twin)
                    before = session.allocations
                    errors += hammer(session, given, expected, 1, 1)
                    grew = grew or session.allocations != before
                    opencl_copies += opencl_copied() - copied
                continue
            for item in faults.split(";"):
                api, spec = item.split("=")
                inject = tvm_ffi.get_global_func(f"heterocc.{api}.fault")
                inject(spec)
                errors += hammer(session, given, expected, 1, 1)
                assert str(inject("")) == "", f"{item} never happened"
            if "lost" not in faults:
                assert hammer(session, given, expected, 2, THREADS) == []
        if "lost" in faults:
            with load(bundle, threads=1) as session:
                assert hammer(session, given, expected, 2, THREADS) == []
    report = {"errors": errors, "grew": grew, "copies": vulkan_api.statistics().copies, "opencl": opencl_copies}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
