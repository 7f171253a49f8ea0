"""The memory of tensors whose sizes are known only at run time."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from heterocc.runtime import load
from heterocc.runtime.native import cpu_api
from tests.runtime.standin import CPU, Model, Op, Part, write_bundle

COLUMNS = 1024


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = 2 · (x + x), for x of any number of rows."""
    part = Part(
        device=0,
        inputs=("x",),
        outputs=("y",),
        ops=(Op("add", "add", ("x", "x"), "sum"), Op("mul", "mul", ("sum", "w"), "y")),
        params=("w",),
    )
    model = Model(
        values=dict.fromkeys(("x", "sum", "y"), ("float32", ("n", COLUMNS))),
        inputs=("x",),
        outputs=("y",),
        parts=(part,),
        weights={"w": np.full((1, COLUMNS), 2, np.float32)},
        devices=(CPU,),
    )
    return write_bundle(tmp_path_factory.mktemp("heap") / "m.hcb", model)


def rows(count: int, value: float) -> dict[str, np.ndarray]:
    return {"x": np.full((count, COLUMNS), value, np.float32)}


def test_memory_of_all_sizes_is_that_of_the_largest(bundle: Path) -> None:
    sizes = np.random.default_rng(0).permutation(np.arange(1, 401))
    with load(bundle) as session:
        before = cpu_api.heap_bytes()
        for count in sizes:
            assert float(session.run(rows(int(count), 3))["y"][-1, -1]) == 12
        # Two tensors of the largest size are in use at once; a pool with blocks of each size would have 600 times one.
        assert cpu_api.heap_bytes() - before <= 8 * 400 * COLUMNS * 4


def test_results_that_are_kept_stay_as_they_are(bundle: Path) -> None:
    with load(bundle) as session:
        kept = [(n, session.run(rows(1 + n % 37, n))["y"]) for n in range(200)]
        del kept[::3]
        kept += [(n, session.run(rows(1 + n % 53, n))["y"]) for n in range(200, 300)]
        for n, result in kept:
            np.testing.assert_array_equal(result, np.float32(4 * n))
            assert result.ctypes.data % 64 == 0
    for n, result in kept:
        np.testing.assert_array_equal(result, np.float32(4 * n))


def test_threads_do_not_share_memory_that_is_in_use(bundle: Path) -> None:
    wrong: list[float] = []

    def call(value: int) -> None:
        with load(bundle) as session:
            for count in range(1, 120):
                found = session.run(rows(count, value))["y"]
                wrong.extend(found[found != 4 * value])

    callers = [threading.Thread(target=call, args=(n,)) for n in range(1, 5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


IDLE = """
import os, sys
import numpy as np
from heterocc.runtime import load
from heterocc.runtime.execute.tvm_api import release_pools
from heterocc.runtime.native import cpu_api
x = {"x": np.ones((500, 1024), np.float32)}
with load(sys.argv[1]) as session:
    result = session.run(x)["y"]
del session
release_pools()
kept = cpu_api.heap_bytes()
del result
release_pools()
print(kept, cpu_api.heap_bytes())
with load(sys.argv[1]) as session:
    session.run(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if float(session.run(x)["y"].max()) == 4 else 1)
    print(os.waitpid(child, 0)[1])
"""


def test_idle_memory_goes_back_and_a_forked_child_has_a_heap(bundle: Path) -> None:
    done = subprocess.run([sys.executable, "-c", IDLE, str(bundle)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kept, idle, status = map(int, done.stdout.split())
    assert kept >= 500 * COLUMNS * 4  # the result outlives its session
    assert (idle, status) == (0, 0)
