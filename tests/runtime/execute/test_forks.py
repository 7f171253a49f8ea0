"""Sessions in a forked child, its parent's and its own: a result or an error at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.reader import open_bundle
from tests.runtime import standin

Write = Callable[..., Path]

CHILDREN = """
import faulthandler, os, sys, threading, time
import numpy as np
from heterocc.artifacts.errors import DeviceError, HeteroccError
from heterocc.runtime import load

path, threads, before, ending = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
x = {"x": np.zeros(16, np.float32)}
session = load(path, threads=threads, profile=True, verify="load")
binding = session.bind()
if before == "run":
    session.run(x)
    binding.run()

def fresh(devices):
    with load(path, devices, threads=threads) as mine:
        return mine.run(x)

def drop():
    global session, binding
    del session, binding

calls = {
    "run": lambda: session.run(x),
    "list": lambda: session.run(None, x),
    "bind": lambda: session.bind().run(),
    "binding": lambda: binding.run(),
    "traced": lambda: session.run_traced(x),
    "kernels": lambda: session.trace_kernels(x, lambda trace: None),
    "binaries": lambda: session.kernel_binaries(),
    "close": lambda: session.close(),
    "drop": drop,
    "fresh": lambda: fresh(None),
    "AUTO": lambda: fresh("AUTO"),
    "nothing": lambda: None,
}
for name, call in calls.items():
    child = os.fork()
    if child == 0:
        try:
            call()
            result = "ok"
        except HeteroccError as error:
            assert error.where and error.hint
            result = error.code
        print(name, result, flush=True)
        if ending == "_exit":
            os._exit(7)
        sys.exit(7)
    begin, done = time.monotonic(), 0
    while not done and time.monotonic() - begin < 15:
        done, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.002)
    if not done:
        os.kill(child, 9)
        print(name, "hangs", flush=True)
    elif os.waitstatus_to_exitcode(status) != 7:
        print(name, "ends with", os.waitstatus_to_exitcode(status), flush=True)
print("parent", "ok" if session.run(x) else "", flush=True)
"""

HARMLESS = ("close", "drop", "nothing", "parent")
USES = ("run", "list", "bind", "binding", "traced", "kernels", "binaries")
LOADS = ("fresh", "AUTO")


def python(script: str, *arguments: object, threads: int = 4) -> str:
    environment = {**os.environ, "TVM_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def outcomes(path: Path, threads: int, before: str, ending: str = "exit") -> dict[str, str]:
    lines = python(CHILDREN, path, threads, before, ending).splitlines()
    found = dict(line.split(" ", 1) for line in lines)
    assert len(lines) == len(found), lines
    return found


def expected(uses: str, loads: str) -> dict[str, str]:
    return {**dict.fromkeys(HARMLESS, "ok"), **dict.fromkeys(USES, uses), **dict.fromkeys(LOADS, loads)}


def negation() -> standin.Model:
    """A model of one partition for ONNX Runtime."""
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [16]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", info[:1], info[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return standin.Model(
        values=dict.fromkeys("xy", ("float32", (16,))),
        inputs=("x",),
        outputs=("y",),
        parts=(standin.Part(0, ("x",), ("y",), onnx=proto.SerializeToString()),),
        devices=(standin.ORT,),
    )


@pytest.mark.parametrize(
    ("threads", "before"), [(1, "run"), pytest.param(4, "nothing", marks=pytest.mark.slow), (4, "run")]
)
def test_a_session_on_the_cpu_goes_on_in_a_forked_child(bundle_of: Write, threads: int, before: str) -> None:
    assert outcomes(bundle_of(standin.chain(2)), threads, before) == expected("ok", "ok")


def test_a_session_of_onnx_runtime_with_one_thread_goes_on_in_a_forked_child(bundle_of: Write) -> None:
    assert outcomes(bundle_of(negation()), 1, "run") == expected("ok", "ok")


def test_a_session_of_onnx_runtime_with_more_threads_is_refused_in_a_forked_child(bundle_of: Write) -> None:
    assert outcomes(bundle_of(negation()), 2, "nothing") == expected("HC401", "ok")


@pytest.mark.parametrize(
    ("devices", "threads", "before"),
    [
        pytest.param("g", 1, "nothing", marks=pytest.mark.opencl),
        pytest.param("gc", 4, "run", marks=[pytest.mark.opencl, pytest.mark.slow]),
        pytest.param("v", 1, "nothing", marks=[pytest.mark.vulkan, pytest.mark.slow]),
        pytest.param("vc", 1, "run", marks=pytest.mark.vulkan),
    ],
)
def test_a_session_on_a_gpu_is_refused_in_a_forked_child_and_a_new_one_takes_the_cpu(
    bundle_of: Write, devices: str, threads: int, before: str
) -> None:
    path = bundle_of(standin.chain(2, device=devices), standin.chain(2))
    assert outcomes(path, threads, before) == expected("HC401", "ok")


@pytest.mark.opencl
def test_a_driver_that_the_parent_used_is_refused_to_a_child_that_loads_a_bundle_for_it(bundle_of: Write) -> None:
    assert outcomes(bundle_of(standin.chain(1, device="g")), 1, "run", "_exit") == expected("HC401", "HC310")


INTERRUPTED = """
import os, sys, threading
import numpy as np
from heterocc.artifacts.errors import DeviceError
from heterocc.runtime import load
x = {"x": np.zeros(16, np.float32)}
session, held, go = load(sys.argv[1], threads=int(sys.argv[2])), threading.Event(), threading.Event()
def callback(trace):
    held.set()
    go.wait()
other = threading.Thread(target=session.trace_kernels, args=(x, callback))
other.start()
held.wait()
child = os.fork()
if child == 0:
    for call in (lambda: session.run(x), lambda: session.bind(), lambda: load(sys.argv[1])):
        try:
            call()
        except DeviceError as error:
            assert "while another thread" in error.message and error.where and error.hint
        else:
            os._exit(1)
    with session:
        pass
    del session, call
    os._exit(3)
go.set()
other.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) - 3)
"""


def test_a_fork_while_another_thread_runs_is_an_error_in_the_child(bundle_of: Write) -> None:
    python(INTERRUPTED, bundle_of(standin.chain(2)), 1)


CALLBACK = """
import os, sys
import numpy as np
from heterocc.artifacts.errors import DeviceError
from heterocc.runtime import load
x = {"x": np.zeros(16, np.float32)}
session, parent, children = load(sys.argv[1], threads=int(sys.argv[2])), os.getpid(), []
def callback(trace):
    if os.getpid() == parent:
        children.append(os.fork())
try:
    session.trace_kernels(x, callback)
except DeviceError as error:
    os._exit(1 if os.getpid() != parent and "in the middle of a run" in error.message else 2)
assert len(children) == 2
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) - 1 for child in children))
"""


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("devices", ["c", pytest.param("g", marks=pytest.mark.opencl)])
def test_a_fork_in_a_kernels_callback_ends_the_run_in_the_child(bundle_of: Write, devices: str, threads: int) -> None:
    python(CALLBACK, bundle_of(standin.chain(2, device=devices)), threads)


def test_a_verification_that_a_fork_interrupts_begins_anew_in_the_child(tmp_path: Path) -> None:
    model = standin.chain(1)
    model.weights = {"w": np.ones((16,), np.float32), **{f"u{i}": np.full(2**20, i, np.float32) for i in range(40)}}
    with open_bundle(standin.write_bundle(tmp_path / "m.hcb", model)) as bundle:
        running = bundle.start_verification()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            bundle.verify_weights()
            os._exit(0 if bundle.start_verification().done else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        running.wait()


THREADS = """
import os, sys, threading, time
import numpy as np
from heterocc.runtime import load
x = {"x": np.zeros(16, np.float32)}
def threads():
    return len(os.listdir("/proc/self/task"))
def callers(count):
    before = [threading.Thread(target=session.run, args=(x,)) for _ in range(count)]
    for thread in before:
        thread.start()
    for thread in before:
        thread.join()
    time.sleep(0.05)
session = load(sys.argv[1], threads=int(sys.argv[2]), verify="load")
time.sleep(0.2)
alone = threads()
session.run(x)
print(threads() - alone)
callers(5)
print(threads() - alone)
session.close()
print(threads() - alone)
"""


def test_one_thread_starts_no_other(bundle_of: Write) -> None:
    assert python(THREADS, bundle_of(standin.chain(2)), 1, threads=32).split() == ["0", "0", "0"]


@pytest.mark.opencl
def test_a_session_on_a_gpu_starts_no_threads_of_its_own_for_kernels(bundle_of: Write) -> None:
    assert python(THREADS, bundle_of(standin.chain(2, device="g")), 4, threads=32).split()[0] == "0"
