"""The threads that parallel loops of CPU code run on."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import NativePluginError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from heterocc.runtime.native import cpu_api

SIZE = 192
LAUNCHER = ctypes.CFUNCTYPE(ctypes.c_int, cpu_api._TASK, ctypes.c_void_p, ctypes.c_int)


def model() -> onnx.ModelProto:
    """A product of matrices, large enough for several threads, and a sum of its rows."""
    weight = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["y", "axes"], ["z"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (SIZE, SIZE))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z")],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.array([1], np.int64), "axes")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads") / "m.hcb"
    compile_model(model(), path, devices="CPU")
    return path


def feed(seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((SIZE, SIZE)).astype(np.float32)}


def expected(x: np.ndarray) -> np.ndarray:
    weight = numpy_helper.to_array(model().graph.initializer[0])
    return np.asarray(x.astype(np.float64) @ weight.astype(np.float64))


@pytest.fixture
def many_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TVM_NUM_THREADS", "32")
    yield


@pytest.mark.parametrize("threads", [1, 2, 3, 7, 32])
@pytest.mark.usefixtures("many_threads")
def test_any_number_of_threads_gives_the_same_bits(bundle: Path, threads: int) -> None:
    x = feed()
    with load(bundle, threads=1) as one:
        alone = one.run(x)
    with load(bundle, threads=threads) as session:
        assert session.threads == threads
        for _ in range(20):
            found = session.run(x)
            assert all(np.array_equal(found[name], alone[name]) for name in alone)
    assert np.allclose(alone["y"], expected(x["x"]), rtol=1e-4, atol=1e-3)


@pytest.mark.usefixtures("many_threads")
def test_callers_of_several_sessions_share_the_workers_and_get_their_own_results(bundle: Path) -> None:
    failures: list[object] = []

    def call(threads: int, seed: int) -> None:
        x = feed(seed)
        want = expected(x["x"])
        with load(bundle, threads=threads) as session:
            for _ in range(30):
                if not np.allclose(session.run(x)["y"], want, rtol=1e-4, atol=1e-3):
                    failures.append((threads, seed))

    callers = [threading.Thread(target=call, args=(2 + i % 3, i)) for i in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures
    assert cpu_api.workers() <= 31


COUNTS = """
import os, sys
import numpy as np
from heterocc.runtime import load
from heterocc.runtime.native import cpu_api
x = {"x": np.zeros((192, 192), np.float32)}
for threads in map(int, sys.argv[2:]):
    with load(sys.argv[1], threads=threads) as session:
        session.run(x)
    print(cpu_api.workers())
session = load(sys.argv[1], threads=3)
for _ in range(3):
    child = os.fork()
    if child == 0:
        session.run(x)
        sys.exit(0 if cpu_api.workers() == 2 else 1)
    print(os.waitpid(child, 0)[1])
"""


def test_the_pool_has_the_workers_of_the_largest_session_and_a_forked_child_its_own(bundle: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COUNTS, bundle, "1", "4", "2"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "TVM_NUM_THREADS": "8"},
    )
    assert done.stdout.split() == ["0", "3", "3", "0", "0", "0"], done.stdout + done.stderr


HELD = """
import ctypes, os, threading
from heterocc.runtime.native import cpu_api

cores = len(os.sched_getaffinity(0))
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
launch = LAUNCH(cpu_api._load().heterocc_cpu_launcher(cores))

def region(work):
    def task(number, size, closure):
        work(number)
        return 0
    kept = TASK(task)
    launch(ctypes.cast(kept, ctypes.c_void_p), None, 0)

def own_region():
    seen = []
    region(lambda number: seen.append((number, threading.get_native_id())))
    return len(seen), {t for _, t in seen} == {threading.get_native_id()}

def held(callers):
    inside, leave = threading.Semaphore(0), threading.Event()
    def hold(number):
        if number == 0:
            inside.release()
            leave.wait()
    threads = [threading.Thread(target=region, args=(hold,)) for _ in range(callers)]
    for thread in threads: thread.start()
    for thread in threads: inside.acquire()
    found = own_region()
    leave.set()
    for thread in threads: thread.join()
    return found

print(own_region()[0] > 1, *held(cores), own_region()[0] > 1)
"""


def test_a_caller_for_every_core_makes_each_run_its_regions_alone() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=60, check=False)
    several = len(os.sched_getaffinity(0)) > 1
    assert done.stdout.split() == [str(several), "1", "True", str(several)], done.stdout + done.stderr


def _recorded(
    done: list[tuple[int, int]], late: Collection[int], pause: float, number: int, _size: int, _closure: int
) -> int:
    """A task that notes its number and its thread, and takes a while if it is a late one."""
    time.sleep(pause if number in late else 0.0)
    done.append((number, threading.get_ident()))
    return 0


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("slow", ["first", "last", "none"])
def test_every_task_runs_once_whichever_thread_is_slow(threads: int, slow: str) -> None:
    """A thread whose tasks take longer than the others' has some of them taken by these."""
    launch = LAUNCHER(cpu_api._library().heterocc_cpu_launcher(threads))
    for tasks in (1, 2, 5, 16, 33, 200):
        pause = 0.002 if tasks < 50 else 0.0
        late = {"first": range(tasks // threads), "last": range(tasks - tasks // threads, tasks), "none": ()}[slow]
        done: list[tuple[int, int]] = []

        assert launch(cpu_api._TASK(partial(_recorded, done, late, pause)), None, tasks) == 0
        assert sorted(number for number, _ in done) == list(range(tasks))
        assert len({thread for _, thread in done}) <= min(threads, tasks)
        if slow == "first" and tasks == 33 and threads == 2:  # 32 ms of work, in which a worker wakes
            assert len({thread for number, thread in done if number in late}) == 2


def test_without_the_plug_in_loops_run_on_the_caller_and_a_note_says_so(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise NativePluginError("the CPU plug-in is not there: no C++ compiler was found")

    monkeypatch.setattr(cpu_api, "_load", missing)
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    x = feed()
    with load(bundle, threads=2) as session:
        assert np.allclose(session.run(x)["y"], expected(x["x"]), rtol=1e-4, atol=1e-3)
        assert any("run on one thread: the CPU plug-in is not there" in note for note in session.notes)
    with load(bundle, threads=1) as session:
        assert not any("one thread" in note for note in session.notes)
