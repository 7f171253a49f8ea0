"""Chains with real transfers: PoCL (twice) and lavapipe as devices with separate memory.

`discrete` in HETEROCC_OPENCL_FAULT and HETEROCC_VULKAN_FAULT is read once in a process, so each test runs one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.manifest import Device
from tests.fresh_process import STRICT
from tests.runtime import standin, stress
from tests.runtime.discrete_run import THREADS
from tests.runtime.standin import Model, Op, Part

pytestmark = [*stress.OPENCL_MARKS, *stress.VULKAN_MARKS]

DEVICES = (standin.CPU, standin.OPENCL, Device(name="OPENCL.1", backend="opencl", index=1), standin.VULKAN)
SHAPE = (64, 33)


def web(seed: int, length: int = 8) -> tuple[Model, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Partitions on random devices, each the sum of two earlier values and a weight; inputs and results by thread."""
    rng = random.Random(seed)
    given = np.random.default_rng(seed).integers(0, 100, (THREADS, *SHAPE)).astype(np.float32)
    names, value = ["x"], {"x": given}
    parts = []
    for i in range(length):
        a, b, name = names[-1], rng.choice(names), f"v{i}"
        inner = f"t{i}"
        parts.append(
            Part(
                device=i % 4 if i < 4 else rng.randrange(4),
                inputs=tuple(dict.fromkeys((a, b))),
                outputs=(name,),
                ops=(Op(f"add{i}", "add", (a, b), inner), Op(f"more{i}", "add", (inner, "w"), name)),
                params=("w",),
            )
        )
        names.append(name)
        value[name] = value[a] + value[b] + 1
    kinds = dict.fromkeys((*names, *(f"t{i}" for i in range(length))), ("float32", SHAPE))
    model = Model(kinds, ("x",), (names[-1],), tuple(parts), {"w": np.ones(SHAPE, np.float32)}, {}, DEVICES)
    return model, given, value[names[-1]]


def run(
    tmp_path: Path,
    bundles: Sequence[Path],
    arrays: dict[str, np.ndarray[Any, Any]],
    faults: str = "-",
    rounds: int = 20,
    vulkan: str = "discrete",
    opencl: str = "discrete",
) -> dict[str, Any]:
    """The output of `discrete_run`; `vulkan` is the kind of device that lavapipe simulates, `opencl` that of PoCL."""
    np.savez(tmp_path / "arrays.npz", **arrays)
    environment = {
        **os.environ,
        "HETEROCC_OPENCL_FAULT": opencl,
        "HETEROCC_VULKAN_FAULT": vulkan,
        "POCL_DEVICES": "pthread pthread",
    }
    command = [
        sys.executable,
        *STRICT,
        "-m",
        "tests.runtime.discrete_run",
        str(rounds),
        str(tmp_path / "arrays.npz"),
        faults,
    ]
    command += [str(bundle) for bundle in bundles]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_eight_threads_over_four_devices_that_share_no_memory_get_their_own_numbers(tmp_path: Path) -> None:
    bundles, arrays = [], {}
    for i in range(2):
        model, arrays[f"x{i}"], arrays[f"y{i}"] = web(i)
        bundles.append(standin.write_bundle(tmp_path / f"{i}.hcb", model))
    report = run(tmp_path, bundles, arrays)
    assert (report["errors"], report["grew"]) == ([], False)
    assert report["copies"] > 0


def test_an_integrated_gpu_lends_its_memory_and_nothing_is_copied_to_it_or_from_it(tmp_path: Path) -> None:
    model, given, expected = web(0)
    bundle = standin.write_bundle(tmp_path / "m.hcb", model)
    report = run(tmp_path, [bundle], {"x0": given, "y0": expected}, vulkan="integrated")
    assert (report["errors"], report["grew"], report["copies"]) == ([], False, 0)


@pytest.mark.parametrize("opencl", [pytest.param("foreign", marks=pytest.mark.slow), "integrated", "incoherent"])
def test_an_integrated_gpu_on_opencl_lends_its_memory_and_nothing_is_copied_to_it_or_from_it(
    tmp_path: Path, opencl: str
) -> None:
    """With a second device, which copies, and Vulkan; memory without its map is garbage."""
    bundles, arrays = [], {}
    for i in range(2):
        model, arrays[f"x{i}"], arrays[f"y{i}"] = web(i)
        bundles.append(standin.write_bundle(tmp_path / f"{i}.hcb", model))
    report = run(tmp_path, bundles, arrays, rounds=10, opencl=opencl)
    assert (report["errors"], report["grew"], report["opencl"]) == ([], False, 0)
    assert report["copies"] > 0


BOUND = """
import sys, numpy as np, tvm_ffi
from heterocc.artifacts.errors import DeviceError, DeviceMemoryError
from heterocc.runtime import load
from heterocc.runtime.native import load_opencl
load_opencl()
fault = tvm_ffi.get_global_func("heterocc.opencl.fault")
x = np.arange(16, dtype=np.float32)
with load(sys.argv[1], threads=1) as session:
    bound = session.bind()
    for number in range(1, 5):
        bound.inputs["x"][:] = x * number
        fault(f"map:{number}")
        try:
            bound.run()
        except DeviceError as error:
            print(error.message)
        assert fault("") == ""
        np.testing.assert_array_equal(bound.inputs["x"], x * number)
        np.testing.assert_array_equal(bound.run()["v2"], x * number + 3)
fault("alloc:3")
try:
    load(sys.argv[1])
except DeviceMemoryError as error:
    print(error.message)
with load(sys.argv[1]) as session:
    np.testing.assert_array_equal(session.run({"x": x})["v2"], x + 3)
"""


def test_a_map_or_an_allocation_that_fails_is_an_error_that_costs_one_run(tmp_path: Path) -> None:
    bundle, _ = relay(tmp_path / "m.hcb", 1, 0, 1)
    environment = {**os.environ, "HETEROCC_OPENCL_FAULT": "incoherent"}
    command = [sys.executable, *STRICT, "-c", BOUND, str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    *maps, memory = done.stdout.splitlines()
    assert [line.split(":")[0] for line in maps] == [
        f"OPENCL failed while running partition 'p{i}'" for i in (0, 0, 2, 2)
    ]
    assert all("clEnqueueMapBuffer failed with CL_MAP_FAILURE" in line for line in maps)
    assert "CL_MEM_OBJECT_ALLOCATION_FAILURE" in memory


def test_a_network_over_three_devices_that_share_no_memory_equals_onnx_runtime(
    tmp_path: Path, bundles: stress.Bundles, samples: stress.Samples
) -> None:
    arrays = {"x0": np.stack(samples.given), "y0": np.stack(samples.expected)}
    report = run(tmp_path, [bundles.of("VULKAN,OPENCL,CPU")], arrays)
    assert (report["errors"], report["grew"]) == ([], False)


def relay(path: Path, *places: int) -> tuple[Path, dict[str, np.ndarray[Any, Any]]]:
    """x → v0 → v1 …, each one more, partition by partition on the devices with these numbers."""
    model = standin.chain(len(places))
    parts = tuple(replace(part, device=place) for part, place in zip(model.parts, places, strict=True))
    x = np.tile(np.arange(16, dtype=np.float32), (THREADS, 1))
    return standin.write_bundle(path, replace(model, parts=parts, devices=DEVICES)), {"x0": x, "y0": x + len(places)}


def test_a_copy_that_fails_under_way_is_an_error_that_names_it_and_costs_one_run(tmp_path: Path) -> None:
    bundle, arrays = relay(tmp_path / "m.hcb", 1, 2, 3, 1)
    report = run(tmp_path, [bundle], arrays, faults=";".join(f"opencl=copy:{i}" for i in range(1, 6)))
    assert [(kind, message.split(":")[0].split(" failed")[0]) for kind, message in report["errors"]] == [
        ("DeviceError", name) for name in ("OPENCL", "OPENCL.1", "OPENCL.1", "OPENCL", "OPENCL")
    ]
    hops = ("'x' from host to opencl:0", "'v0' from opencl:0 to opencl:1", "'v1' from opencl:1 to host",
            "'v2' from host to opencl:0", "'v3' from opencl:0 to host")  # fmt: skip
    for (_, message), hop in zip(report["errors"], hops, strict=True):
        assert f"while sending {hop}" in message


def test_a_device_that_is_lost_with_a_copy_under_way_is_an_error_that_names_the_copy(tmp_path: Path) -> None:
    bundle, arrays = relay(tmp_path / "m.hcb", 0, 3, 0)
    ((kind, message),) = run(tmp_path, [bundle], arrays, faults="vulkan=lost:1")["errors"]
    assert kind == "DeviceLostError"
    assert "VULKAN failed while sending 'v1' from vulkan:0 to host: vkQueueSubmit" in message


@pytest.mark.parametrize("opencl", ["discrete", "incoherent"])
@pytest.mark.parametrize("command", [2, 5])
def test_an_opencl_device_that_is_lost_fails_the_run_and_is_opened_anew(
    tmp_path: Path, opencl: str, command: int
) -> None:
    bundle, arrays = relay(tmp_path / "m.hcb", 1, 0, 1, 2)
    ((kind, message),) = run(tmp_path, [bundle], arrays, f"opencl=lost:{command}", opencl=opencl)["errors"]
    assert kind == "DeviceLostError"
    assert "OPENCL failed while" in message
    assert "the device was lost, and what was on it is gone: load the bundle again" in message


MOVING = """
import sys, numpy as np
from heterocc.runtime import load
x = np.arange(16, dtype=np.float32)
with load(sys.argv[1], threads=1) as session:
    np.testing.assert_array_equal(session.run({"x": x})["v2"], x + 3)
    print([note for note in session.notes if "copied" in note])
"""


def test_a_driver_that_moves_what_it_maps_is_copied_to_and_the_session_says_so(tmp_path: Path) -> None:
    bundle, _ = relay(tmp_path / "m.hcb", 1, 0, 1)
    environment = {**os.environ, "HETEROCC_OPENCL_FAULT": "integrated,move:1+"}
    command = [sys.executable, *STRICT, "-c", MOVING, str(bundle)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    note = "opencl:0 shares the host's memory, but its driver moves what it maps: values are copied"
    assert done.stdout.strip() == repr([note])
