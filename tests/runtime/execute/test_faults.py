"""Simulated failures: each is a typed error and never a wrong number, and other sessions are not affected."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import tvm_ffi

from heterocc.artifacts.errors import DeviceError, DeviceMemoryError
from heterocc.runtime import Session, load
from heterocc.runtime.execute.tvm_api import release_pools
from heterocc.runtime.native import opencl_devices, vulkan_devices
from tests.runtime.stress import (
    OPENCL,
    OPENCL_MARKS,
    THREADS,
    VULKAN,
    VULKAN_MARKS,
    Bundles,
    Samples,
    check,
    hammer,
    run_with_fault,
)

OTHER = {"OPENCL": "VULKAN", "VULKAN": "OPENCL"}
BOTH = [pytest.param(d, marks=OPENCL_MARKS + VULKAN_MARKS) for d in OTHER]

Inject = Callable[[str], str]


@pytest.fixture
def faults(device: str) -> Iterator[Inject]:
    """Sets simulated failures of the device that the test is for, gives those never met before; takes them back."""
    (opencl_devices if device == "OPENCL" else vulkan_devices)()
    inject = tvm_ffi.get_global_func(f"heterocc.{device.lower()}.fault")
    yield lambda spec: str(inject(spec))
    inject("")


@pytest.fixture
def opened() -> Iterator[Callable[..., Session]]:
    """`load` with one thread per run; its sessions are closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda path: stack.enter_context(load(path, threads=1))


@pytest.mark.parametrize("sessions", [1, THREADS])
@pytest.mark.parametrize("device", [OPENCL, VULKAN])
def test_a_launch_that_fails_among_eight_threads_costs_one_run(
    bundles: Bundles, samples: Samples, faults: Inject, opened: Callable[..., Session], device: str, sessions: int
) -> None:
    loaded = [opened(bundles.of(device)) for _ in range(sessions)]
    assert hammer(loaded, samples, 1) == []
    for number in (1, 7, 20):
        faults(f"launch:{number}")
        (error,) = hammer(loaded, samples, 5)
        assert isinstance(error, DeviceError)
        assert f"{device} failed while running partition" in error.message
        assert hammer(loaded, samples, 2) == []


@pytest.mark.parametrize("device", BOTH)
def test_sessions_of_other_devices_run_on_while_every_launch_of_one_fails(
    bundles: Bundles, samples: Samples, faults: Inject, opened: Callable[..., Session], device: str
) -> None:
    failing = opened(bundles.of(device))
    others = [opened(bundles.of(name)) for name in (OTHER[device], "CPU")]
    faults("launch:1+")
    errors = hammer([failing, *others], samples, 10)
    assert len(errors) == 10 * len(range(0, THREADS, 3))
    assert all(f"{device} failed while running" in e.message for e in errors)
    assert faults("") == ""
    assert hammer([failing, *others], samples, 10) == []


@pytest.mark.parametrize("device", BOTH)
def test_memory_that_is_gone_fails_typed_until_there_is_some_and_other_devices_do_not_notice(
    bundles: Bundles, samples: Samples, faults: Inject, opened: Callable[..., Session], device: str
) -> None:
    short, others = [opened(bundles.of(device))], [opened(bundles.of(name)) for name in (OTHER[device], "CPU")]
    assert hammer([*short, *others], samples, 5) == []
    release_pools()  # else what TVM and the plug-in keep for later would do
    tvm_ffi.get_global_func(f"heterocc.{device.lower()}.trim")()
    faults("alloc:1+")
    with pytest.raises(DeviceMemoryError):
        short.append(opened(bundles.of(device)))
        short[-1].run({"x": samples.given[0]})
    assert hammer(others, samples, 5) == []
    errors = hammer(short, samples, 5)
    assert errors
    assert all(isinstance(e, DeviceMemoryError) for e in errors)
    assert faults("") == ""
    assert hammer([*short, *others], samples, 5) == []
    assert hammer(short, samples, 5) == []


@pytest.mark.parametrize("device", BOTH)
def test_kernels_that_do_not_build_fail_their_session_and_no_other(
    bundles: Bundles, samples: Samples, faults: Inject, opened: Callable[..., Session], device: str
) -> None:
    running = [opened(bundles.of(name)) for name in (device, OTHER[device], "CPU")]
    assert hammer(running, samples, 1) == []
    faults("build:1+")
    with pytest.raises(DeviceError), load(bundles.of(device), threads=1) as session:
        session.run({"x": samples.given[0]})
    assert hammer(running, samples, 5) == []
    assert faults("") == ""
    check(opened(bundles.of(device)).run({"x": samples.given[0]})["y"], samples.expected[0])


@pytest.mark.parametrize("device", BOTH)
def test_a_device_lost_among_eight_threads_fails_typed_until_the_bundle_is_loaded_again(
    bundles: Bundles, samples: Samples, faults: Inject, opened: Callable[..., Session], device: str
) -> None:
    lost, others = opened(bundles.of(device)), [opened(bundles.of(name)) for name in (OTHER[device], "CPU")]
    assert hammer([lost, *others], samples, 1) == []
    faults("lost:9")
    errors = hammer([lost, *others], samples, 5)
    assert errors
    assert all(isinstance(e, DeviceError) and device in e.message for e in errors)
    with pytest.raises(DeviceError, match="load the bundle again"):
        lost.run({"x": samples.given[0]})
    assert hammer(others, samples, 5) == []
    assert hammer([opened(bundles.of(device)), *others], samples, 5) == []


FAULTS = ("alloc:1", "alloc:2", "alloc:3", "launch:1", "launch:3", "build:1", "build:2")


@pytest.mark.parametrize(
    ("device", "fault"),
    [
        *(pytest.param(*device.values, fault, marks=device.marks) for device in (OPENCL, VULKAN) for fault in FAULTS),
        pytest.param("VULKAN", "lost:1", marks=VULKAN_MARKS),
        pytest.param("OPENCL", "lost:1", marks=OPENCL_MARKS),
    ],
)
def test_a_failure_set_in_the_environment_is_typed_and_the_process_goes_on(
    bundles: Bundles, samples: Samples, device: str, fault: str
) -> None:
    result = run_with_fault(bundles.of(device), device, fault, samples)
    assert result.not_met == ""
    allowed = {"alloc": {"DeviceMemoryError"}, "lost": {"DeviceLostError"}}.get(fault.split(":")[0], {"DeviceError"})
    assert {name for _, name in result.failed} <= allowed
    # An allocation that fails is tried again when TVM's pools are empty: it may cost nothing.
    assert len(result.failed) == 1 or fault.startswith(("alloc", "lost"))
    assert result.failed or fault.startswith("alloc")
    assert [outcome for stage, outcome in result.stages if stage == "load"][-1] == "ok"
    assert not isinstance(result.stages[-1][1], str), f"the last session does not run: {result.stages[-1][1]}"


@pytest.mark.parametrize("device", [OPENCL, VULKAN])
def test_memory_that_never_comes_back_is_an_error_of_every_load(
    bundles: Bundles, samples: Samples, device: str
) -> None:
    result = run_with_fault(bundles.of(device), device, "alloc:1+", samples)
    assert result.not_met == ""
    assert {name for _, name in result.failed} == {"DeviceMemoryError"}
    assert not [found for stage, found in result.stages if stage == "run" and not isinstance(found, str)]


@pytest.mark.parametrize("device", [OPENCL, VULKAN])
def test_a_driver_that_is_gone_is_an_error_of_the_load(bundles: Bundles, samples: Samples, device: str) -> None:
    result = run_with_fault(bundles.of(device), device, "no-driver", samples)
    assert result.stages == result.failed == (("load", "IncompatibleBundleError"),) * 3


@pytest.mark.parametrize("device", [OPENCL, VULKAN])
def test_a_driver_that_is_gone_leaves_the_cpu_variant(bundles: Bundles, samples: Samples, device: str) -> None:
    result = run_with_fault(bundles.of(device, cpu_variant=True), device, "no-driver", samples)
    assert result.failed == ()
    assert len(result.stages) == 3 + 9
