"""A small network on one device or three, and eight threads that run it; what wrong numbers and failures come to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.runtime import Session
from heterocc.runtime.native import opencl_unavailable_reason, vulkan_unavailable_reason
from tests.fresh_process import STRICT

THREADS = 8
X_SHAPE = (1, 4, 8, 8)

NO_OPENCL, NO_VULKAN = opencl_unavailable_reason(), vulkan_unavailable_reason()
OPENCL_MARKS = [pytest.mark.opencl, pytest.mark.skipif(NO_OPENCL is not None, reason=f"no OpenCL here: {NO_OPENCL}")]
VULKAN_MARKS = [pytest.mark.vulkan, pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan here: {NO_VULKAN}")]
OPENCL = pytest.param("OPENCL", marks=OPENCL_MARKS)
VULKAN = pytest.param("VULKAN", marks=VULKAN_MARKS)
CHAIN = pytest.param("VULKAN,OPENCL,CPU", marks=OPENCL_MARKS + VULKAN_MARKS)
"""All three in one bundle, each with a part of the network."""


def both(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs OpenCL and Vulkan."""
    for mark in OPENCL_MARKS + VULKAN_MARKS:
        test = mark(test)
    return test


PLACES = {"conv1": 0, "relu": 0, "conv2": 1, "add": 2, "pool": 1, "flatten": 0, "matmul": 2}
"""The device of each node of the network, of three; with fewer devices, the remainder."""


def conv_net(path: Path) -> Path:
    """Two convolutions, a residual sum, pooling and a matrix product: x[1,4,8,8] → y[1,5]."""
    rng = np.random.default_rng(0)
    weights = {"w1": (4, 4, 3, 3), "w2": (4, 4, 3, 3), "m": (4, 5)}
    arrays = {n: rng.standard_normal(s).astype(np.float32) / 3 for n, s in weights.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["d"], name="add"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], name="pool"),
        helper.make_node("Flatten", ["e"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "m"], ["y"], name="matmul"),
    ]
    graph = helper.make_graph(
        nodes,
        "conv_net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X_SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 5))],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


class Bundles:
    """The network compiled for a device alone (`VULKAN`) or over several (`VULKAN,OPENCL,CPU`), once each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model = conv_net(folder / "m.onnx")

    def of(self, devices: str, *, cpu_variant: bool = False) -> Path:
        """The bundle; with a `cpu_variant` it also runs without its devices."""
        path = self._folder / f"{devices}-{cpu_variant}.hcb"
        if not path.is_file():
            names = devices.split(",")
            places = {node: names[place % len(names)] for node, place in PLACES.items()}
            listed = f"{devices},CPU" if cpu_variant else devices
            report = compile_model(self._model, path, devices=listed, affinity=places, cpu_variant=cpu_variant)
            assert {p.device for p in report.plan.partitions} == set(names)
        return path


@dataclass(frozen=True, slots=True)
class Samples:
    """A separate input for every thread, and ONNX Runtime's result on it."""

    given: tuple[np.ndarray[Any, Any], ...]
    expected: tuple[np.ndarray[Any, Any], ...]

    @classmethod
    def draw(cls, folder: Path) -> Samples:
        session = ort.InferenceSession(str(conv_net(folder / "m.onnx")), providers=["CPUExecutionProvider"])
        rng = np.random.default_rng(1)
        given = tuple(rng.standard_normal(X_SHAPE).astype(np.float32) for _ in range(THREADS))
        return cls(given, tuple(session.run(None, {"x": x})[0] for x in given))


def check(found: Any, expected: np.ndarray[Any, Any]) -> None:
    """Raises if a result is wrong."""
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def hammer(sessions: Sequence[Session], samples: Samples, rounds: int) -> list[HeteroccError]:
    """Eight threads, on the sessions in turn, run their own input `rounds` times; gives the typed errors.

    Raises if a number is wrong, or an error has no type.
    """
    gate = threading.Barrier(THREADS)

    def caller(number: int) -> list[HeteroccError]:
        session, x, expected = sessions[number % len(sessions)], samples.given[number], samples.expected[number]
        errors = []
        gate.wait()
        for _ in range(rounds):
            try:
                found = session.run({"x": x})["y"]
            except HeteroccError as error:
                errors.append(error)
            else:
                check(found, expected)
        return errors

    with ThreadPoolExecutor(THREADS) as pool:
        return [error for errors in pool.map(caller, range(THREADS)) for error in errors]


STAGES = """
import json, sys
import numpy as np
import tvm_ffi
from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime import load

def tried(call):
    try:
        return call(), "ok"
    except HeteroccError as error:
        return None, type(error).__name__

path, given, api = sys.argv[1:]
x = np.load(given)
results = []
for _ in range(3):
    session, outcome = tried(lambda: load(path, threads=1))
    results.append(["load", outcome])
    if session is None:
        continue
    for _ in range(3):
        result, outcome = tried(lambda: session.run({"x": x})["y"].tolist())
        results.append(["run", outcome if result is None else result])
    session.close()
    assert tried(lambda: session.run({"x": x}))[1] == "UsageError"
fault = tvm_ffi.get_global_func(f"heterocc.{api}.fault")
print(json.dumps({"results": results, "not_met": str(fault(""))}))
"""


@dataclass(frozen=True, slots=True)
class FaultRun:
    """The results of three loads with three runs each: stage, and `ok`, the name of an error, or the numbers.

    `not_met` names the faults that were asked for and never happened.
    """

    stages: tuple[tuple[str, Any], ...]
    not_met: str

    @property
    def failed(self) -> tuple[tuple[str, str], ...]:
        """The stages that failed, with the error's name."""
        return tuple((stage, found) for stage, found in self.stages if isinstance(found, str) and found != "ok")


def run_with_fault(bundle: Path, device: str, fault: str, samples: Samples) -> FaultRun:
    """Load and run a bundle in a process with `fault` in the environment; raises if a number is wrong."""
    given = bundle.with_suffix(".npy")
    np.save(given, samples.given[0])
    environment = {**os.environ, f"HETEROCC_{device}_FAULT": fault}
    command = [sys.executable, *STRICT, "-c", STAGES, str(bundle), str(given), device.lower()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    results = FaultRun(tuple((stage, outcome) for stage, outcome in found["results"]), found["not_met"])
    for stage, outcome in results.stages:
        if stage == "run" and not isinstance(outcome, str):
            check(outcome, samples.expected[0])
    return results
