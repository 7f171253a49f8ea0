"""Sessions on CUDA, on the emulated driver (see cuda_emulated), which does nothing before somebody waits for it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.compiler.devices.device import TargetAttr, TargetDevice
from heterocc.compiler.lower.cuda import lowering
from tests.compiler.lower import cuda_emulated

pytestmark = pytest.mark.xdist_group("cuda programs")  # one process builds what the tests share

SIZE = 64
PLACES = {"first": "CUDA", "beside": "CPU", "between": "CPU", "joined": "CUDA", "last": "CPU"}


def network() -> onnx.ModelProto:
    """Partitions in turns on both devices, and an independent one on the CPU; `early` is done before y."""
    nodes = [
        helper.make_node("Sin", ["x"], ["c"], name="beside"),
        helper.make_node("MatMul", ["x", "w"], ["early"], name="first"),
        helper.make_node("Tanh", ["early"], ["b"], name="between"),
        helper.make_node("Add", ["b", "early"], ["d"], name="joined"),
        helper.make_node("Sub", ["d", "c"], ["y"], name="last"),
    ]
    weight = np.random.default_rng(0).uniform(-1, 1, (SIZE, SIZE)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "turns",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (8, SIZE))],
        [helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, (8, SIZE)) for y in ("y", "early")],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The emulated driver and the network's bundles: `turns.hcb`, and `two.hcb` on two GPUs."""
    made = tmp_path_factory.mktemp("cuda")
    cuda_emulated.build_driver(made)
    onnx.save(network(), made / "turns.onnx")
    target: dict[str, TargetAttr] = {"kind": "cuda", "arch": "sm_90"}
    gpus = tuple(TargetDevice(n, "cuda", i, target=target, present=False) for i, n in enumerate(("CUDA", "CUDA.1")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "find_compiler", lambda arch: cuda_emulated.HostCompiler(made))
        for name, devices, places in (
            ("turns", "CUDA,CPU", PLACES),
            ("two", "CUDA,CUDA.1,CPU", {**PLACES, "joined": "CUDA.1", "last": "CUDA"}),
        ):
            compile_model(
                made / "turns.onnx",
                made / f"{name}.hcb",
                devices=devices,
                device_files=gpus,
                policy="greedy",  # does not merge: independent partitions run concurrently
                affinity=places,
            )
    return made


HEAD = """
import ctypes, json, sys, threading
import numpy as np
from heterocc.runtime import load
from heterocc.runtime.native import cuda_api, cuda_driver
folder = sys.argv[1]
cuda_api.cudart_candidates = lambda: iter([folder + '/libcudart.so.13'])
bundle = folder + '/turns.hcb'
def feed(seed):
    return {'x': np.random.default_rng(seed).uniform(-1, 1, (8, 64)).astype(np.float32)}
def error(session, cpu, seed):
    got, expected = session.run(feed(seed)), cpu.run(feed(seed))
    return max(float(abs(got[y] - expected[y]).max()) for y in expected)
def current():
    context = ctypes.c_void_p()
    cuda_driver.check('cuCtxGetCurrent', ctypes.byref(context))
    return context.value
"""


def run(folder: Path, code: str, **settings: object) -> tuple[Any, list[str]]:
    """The JSON that code prints in a fresh process, and the calls of the driver."""
    (folder / "log.txt").unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code, str(folder)],
        env={**os.environ, **cuda_emulated.environment(folder, **settings)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), list(cuda_emulated.log(folder))


def test_copies_are_asynchronous_and_the_host_waits_right_before_it_reads(folder: Path) -> None:
    code = """
from heterocc.runtime.execute.chain import Context
whole = Context._bind_call
def bind(self, index, space, observer):
    call = whole(self, index, space, observer)
    if space.backend != 'cpu':
        return call
    def noted():
        with open(folder + '/log.txt', 'a') as log:
            print('host', file=log)
        call()
    return noted
cpu = load(bundle, 'CPU')
Context._bind_call = bind
s = load(bundle)
open(folder + '/log.txt', 'w').close()
Context._bind_call = whole
print(json.dumps(error(s, cpu, 1)))
"""
    worst, log = run(folder, code)
    assert worst < 1e-5
    assert not [line for line in log if "pageable" in line or "default stream" in line]
    wanted = ("copy in", "launch", "copy out", "host", "wait")
    done = [next(w for w in wanted if line.startswith(w)) for line in log if line.startswith(wanted)]
    assert [what for what, _ in itertools.groupby(done)] == [
        *("copy in", "launch", "copy out"),
        "host",  # concurrently: without a wait
        "wait",
        "host",  # between
        *("copy in", "launch", "copy out"),
        "wait",
        "host",  # last
        "wait",  # before the memory is freed
    ]


def test_a_wait_that_is_forgotten_is_a_wrong_number_on_the_emulated_driver(folder: Path) -> None:
    for broken in ("Event.wait = lambda self: None", "Stream.follow = lambda self, events: None"):
        code = f"cuda_driver.{broken}\nprint(json.dumps(error(load(bundle), load(bundle, 'CPU'), 1) < 1e-5))\n"
        assert run(folder, code)[0] is False


def test_eight_threads_on_two_sessions_get_their_own_numbers_and_leave_nothing_in_use(folder: Path) -> None:
    code = (
        "sessions, cpu = [load(bundle), load(bundle)], load(bundle, 'CPU', threads=1)\n"
        "worst = [0.0] * 8\n"
        "def caller(i):\n"
        "    for seed in range(12):\n"
        "        worst[i] = max(worst[i], error(sessions[i % 2], cpu, 100 * i + seed))\n"
        "threads = [threading.Thread(target=caller, args=(i,)) for i in range(8)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "counts = [s.allocations for s in sessions]\n"
        "for s in sessions: s.run(feed(0))\n"
        "grew = [s.allocations for s in sessions] != counts\n"
        "for s in sessions: s.close()\n"
        "print(json.dumps([max(worst), grew]))\n"
    )
    (worst, grew), log = run(folder, code)
    assert worst < 1e-5
    assert not grew
    assert not [line for line in log if "while used" in line or "work to do" in line]


def test_the_thread_keeps_the_device_that_it_had_before_a_run(folder: Path) -> None:
    """As if PyTorch worked on cuda:1 in the same thread: TVM makes device 0 current."""
    code = (
        "s = load(bundle)\n"
        "other = cuda_driver._primary_context(1)\n"
        "cuda_driver.check('cuCtxSetCurrent', other)\n"
        "s.run(feed(0))\n"
        "after_run = current() == other\n"
        "another = load(bundle)\n"
        "after_load = current() == other\n"
        "another.close()\n"
        "print(json.dumps([after_run, after_load, current() == other]))\n"
    )
    assert run(folder, code, count=2)[0] == [True, True, True]


def test_two_gpus_send_to_each_other_while_the_host_goes_on(folder: Path) -> None:
    code = "print(json.dumps(error(load(folder + '/two.hcb'), load(bundle, 'CPU'), 3)))\n"
    worst, log = run(folder, code, count=2)
    assert worst < 1e-5
    start = next(i for i, line in enumerate(log) if line.startswith("copy between devices"))
    assert [line for line in log[:start] if line.startswith("launch")]
    between = log[start : next(i for i, line in enumerate(log) if i > start and line.startswith("launch"))]
    assert not [line for line in between if line.startswith("wait")]


def test_a_run_that_finds_no_memory_leaves_the_session_usable(folder: Path) -> None:
    code = (
        "import os\n"
        "s, caught = load(bundle), []\n"
        "os.environ['EMULATED_MEMORY'] = '8'\n"
        "try:\n    s.run_traced(feed(0))\n"
        "except Exception as e:\n    caught = [e.code, e.message]\n"
        "del os.environ['EMULATED_MEMORY']\n"
        "print(json.dumps([caught, error(s, load(bundle, 'CPU'), 0)]))\n"
    )
    ((code, message), worst), _ = run(folder, code)
    assert code == "HC404"
    assert message.startswith("cuda:0 is out of memory while allocating ")
    assert worst < 1e-5


def test_looking_for_devices_makes_no_context(folder: Path) -> None:
    """A context takes some hundred megabytes of every GPU."""
    code = (
        "from heterocc.runtime.machine.devices import inventory\n"
        "labels = [d.label for d in inventory().devices if d.backend == 'cuda']\n"
        "print(json.dumps([labels, current()]))\n"
    )
    (labels, context), log = run(folder, code, count=2)
    assert labels == ["CUDA", "CUDA.1"]
    assert context is None
    assert not [line for line in log if line.startswith("context")]


def test_a_kernel_that_touches_what_it_may_not_is_a_typed_error_and_leaves_the_process_to_the_cpu(folder: Path) -> None:
    """From then on every call of CUDA fails, freeing memory too: TVM would end the process over that."""
    code = (
        "s, caught = load(bundle), []\n"
        "for _ in range(2):\n"
        "    try:\n        s.run(feed(0))\n"
        "    except Exception as e:\n        caught.append([e.code, e.message, e.hint])\n"
        "s.close()\n"
        "del s\n"
        "print(json.dumps([caught, load(bundle).notes, error(load(bundle, 'CPU'), load(bundle, 'CPU'), 0)]))\n"
    )
    (caught, notes, difference), _ = run(folder, code, illegal="joined")
    assert [code for code, _, _ in caught] == ["HC409", "HC409"]
    assert caught[0][1].startswith("CUDA failed while sending 'd' from cuda:0 to host, for good: cuEventSynchronize: ")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)" in caught[0][1]
    assert "CUDA cannot be used in this process any more" in caught[0][2]
    assert notes[-1] == "runs on CPU instead"
    assert difference == 0
