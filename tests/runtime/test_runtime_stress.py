"""Eight threads on one session and on eight, on every device, and failures in the middle of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tvm_ffi
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import DeviceError, HeteroccError
from heterocc.compiler.driver import compile_model
from heterocc.runtime import Session, load
from heterocc.runtime.native import unavailable_reason, vulkan_unavailable_reason

THREADS = 8
X_SHAPE = (1, 4, 8, 8)

NO_OPENCL, NO_VULKAN = unavailable_reason(), vulkan_unavailable_reason()
OPENCL = pytest.param(
    "OPENCL",
    marks=[pytest.mark.opencl, pytest.mark.skipif(NO_OPENCL is not None, reason=f"no OpenCL here: {NO_OPENCL}")],
)
VULKAN = pytest.param(
    "VULKAN",
    marks=[pytest.mark.vulkan, pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan here: {NO_VULKAN}")],
)
ROUNDS = [pytest.param(10, id="short"), pytest.param(200, id="long", marks=pytest.mark.slow)]


def conv_net(path: Path) -> Path:
    """Two convolutions, a residual sum, pooling and a matrix product: x[1,4,8,8] → y[1,5]."""
    rng = np.random.default_rng(0)
    weights = {"w1": (4, 4, 3, 3), "w2": (4, 4, 3, 3), "m": (4, 5)}
    arrays = {n: rng.standard_normal(s).astype(np.float32) / 3 for n, s in weights.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
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


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The small network compiled for a device alone, once per device."""
    folder = tmp_path_factory.mktemp("stress")
    model = conv_net(folder / "m.onnx")
    made: dict[str, Path] = {}

    def of(device: str) -> Path:
        if device not in made:
            made[device] = folder / f"{device}.hcb"
            report = compile_model(model, made[device], devices=device)
            assert {p.device for p in report.plan.partitions} == {device}
        return made[device]

    return of


Samples = tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    """An input of its own for every thread, and ONNX Runtime's result on it."""
    model = conv_net(tmp_path_factory.mktemp("samples") / "m.onnx")
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(X_SHAPE).astype(np.float32) for _ in range(THREADS)]
    return given, [session.run(None, {"x": x})[0] for x in given]


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> Iterator[Callable[[str], None]]:
    """Sets a simulated failure of the device that the test is for, and takes it back."""
    device = request.node.callspec.params["device"]
    inject = tvm_ffi.get_global_func(f"heterocc.{device.lower()}.fault")
    yield inject
    inject("")


def hammer(sessions: list[Session], samples: Samples, rounds: int) -> list[HeteroccError]:
    """Eight threads run their own input `rounds` times; wrong numbers raise, typed errors are returned."""
    gate = threading.Barrier(THREADS)

    def caller(number: int) -> list[HeteroccError]:
        session, x, expected = sessions[number % len(sessions)], samples[0][number], samples[1][number]
        errors = []
        gate.wait()
        for _ in range(rounds):
            try:
                found = session.run({"x": x})["y"]
            except HeteroccError as error:
                errors.append(error)
            else:
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        return errors

    with ThreadPoolExecutor(THREADS) as pool:
        return [error for errors in pool.map(caller, range(THREADS)) for error in errors]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("sessions", [1, THREADS])
@pytest.mark.parametrize("device", ["CPU", OPENCL, VULKAN])
def test_eight_threads_each_get_their_own_numbers(
    bundles: Callable[[str], Path], samples: Samples, device: str, sessions: int, rounds: int
) -> None:
    loaded = [load(bundles(device), threads=1) for _ in range(sessions)]
    try:
        assert hammer(loaded, samples, 1) == []
        assert hammer(loaded, samples, rounds) == []
    finally:
        for session in loaded:
            session.close()


@pytest.mark.parametrize("sessions", [1, THREADS])
@pytest.mark.parametrize("device", [OPENCL, VULKAN])
def test_a_launch_that_fails_among_eight_threads_costs_one_run(
    bundles: Callable[[str], Path],
    samples: Samples,
    faults: Callable[[str], None],
    device: str,
    sessions: int,
) -> None:
    loaded = [load(bundles(device), threads=1) for _ in range(sessions)]
    try:
        assert hammer(loaded, samples, 1) == []
        for number in (1, 7, 20):
            faults(f"launch:{number}")
            (error,) = hammer(loaded, samples, 5)
            assert isinstance(error, DeviceError)
            assert f"{device} failed while running partition" in error.message
            assert hammer(loaded, samples, 2) == []
    finally:
        for session in loaded:
            session.close()


@pytest.mark.parametrize("device", [VULKAN])
def test_a_device_lost_among_eight_threads_fails_typed_until_the_bundle_is_loaded_again(
    bundles: Callable[[str], Path], samples: Samples, faults: Callable[[str], None], device: str
) -> None:
    with load(bundles(device), threads=1) as session:
        assert hammer([session], samples, 1) == []
        faults("lost:9")
        errors = hammer([session], samples, 5)
        assert errors
        assert all(isinstance(e, DeviceError) for e in errors)
        with pytest.raises(DeviceError, match="load the bundle again"):
            session.run({"x": samples[0][0]})
    with load(bundles(device), threads=1) as session:
        assert hammer([session], samples, 5) == []


STAGES = """
import json, sys
import numpy as np
from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime import load

def tried(call):
    try:
        return call(), "ok"
    except HeteroccError as error:
        return None, type(error).__name__

path, given = sys.argv[1:]
x = np.load(given)
told = []
for _ in range(3):
    session, outcome = tried(lambda: load(path, threads=1))
    told.append(["load", outcome])
    if session is None:
        continue
    for _ in range(3):
        result, outcome = tried(lambda: session.run({"x": x})["y"].tolist())
        told.append(["run", outcome if result is None else result])
    session.close()
    assert tried(lambda: session.run({"x": x}))[1] == "UsageError"
print(json.dumps(told))
"""


FAULTS = ("alloc:1", "alloc:2", "alloc:3", "launch:1", "launch:3", "build:1")


@pytest.mark.parametrize(
    ("device", "fault"),
    [
        *(pytest.param(*device.values, fault, marks=device.marks) for device in (OPENCL, VULKAN) for fault in FAULTS),
        pytest.param("VULKAN", "lost:1", marks=VULKAN.marks),
    ],
)
def test_a_failure_set_in_the_environment_is_typed_and_the_process_goes_on(
    bundles: Callable[[str], Path], samples: Samples, tmp_path: Path, device: str, fault: str
) -> None:
    given = tmp_path / "x.npy"
    np.save(given, samples[0][0])
    told = staged(bundles(device), given, device, fault)
    failed = [(stage, outcome) for stage, outcome in told if isinstance(outcome, str) and outcome != "ok"]
    for stage, outcome in failed:
        assert outcome in ("DeviceError", "DeviceMemoryError"), (stage, outcome)
        assert not fault.startswith("alloc") or outcome == "DeviceMemoryError"
    for stage, outcome in told:
        if stage == "run" and not isinstance(outcome, str):
            np.testing.assert_allclose(outcome, samples[1][0], rtol=1e-4, atol=1e-5)
    assert [outcome for stage, outcome in told if stage == "load"][-1] == "ok"
    assert not isinstance(told[-1][1], str), f"the last session does not run: {told[-1][1]}"
    if fault.startswith(("launch", "lost")):
        assert failed, "the fault was never met"
    if fault.startswith("launch"):
        assert len(failed) == 1


@pytest.mark.parametrize("device", [OPENCL, VULKAN])
def test_a_driver_that_is_gone_is_an_error_of_the_load(
    bundles: Callable[[str], Path], samples: Samples, tmp_path: Path, device: str
) -> None:
    given = tmp_path / "x.npy"
    np.save(given, samples[0][0])
    outcomes = {outcome for _, outcome in staged(bundles(device), given, device, "no-driver")}
    assert outcomes <= {"DriverMissingError", "IncompatibleBundleError"}


def staged(bundle: Path, given: Path, device: str, fault: str) -> list[tuple[str, Any]]:
    """What three loads of three runs each come to in a process where `fault` is in the environment."""
    environment = {**os.environ, f"HETEROCC_{device}_FAULT": fault}
    command = [sys.executable, "-W", "error", "-c", STAGES, str(bundle), str(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return [(stage, outcome) for stage, outcome in json.loads(done.stdout.splitlines()[-1])]
