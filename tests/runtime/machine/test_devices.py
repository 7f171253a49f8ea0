from __future__ import annotations

import dataclasses
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

import heterocc.runtime
from heterocc.artifacts.errors import DeviceError, DeviceMemoryError, DriverMissingError, FeedError
from heterocc.artifacts.manifest import Device
from heterocc.runtime.execute.faults import device_fault, offer, take_device_loss
from heterocc.runtime.machine import devices as under_test
from heterocc.runtime.machine.devices import Absent, driver_reason, inventory
from heterocc.runtime.native import CudaDevice, OpenCLDevice, VulkanDevice
from tests import sample_devices
from tests.fresh_process import fresh
from tests.sample_devices import DIE, HOPPER

GPU = dataclasses.replace(DIE, name="A GPU", fp16=False, fp64=True, extensions=("cl_khr_subgroups",))
CARD = dataclasses.replace(sample_devices.CARD, name="A card", fp64=False, subgroups=False)


def test_the_inventory_has_the_cpu_first_and_a_reason_for_every_absent_back_end() -> None:
    found = inventory()
    assert found.devices[0].label == "CPU"
    assert found.devices[0].cores == len(os.sched_getaffinity(0))
    assert found.devices[0].memory
    here = {d.backend for d in found.devices}
    absent = {a.backend: a.reason for a in found.absent}
    assert here | set(absent) == {"cpu", "opencl", "vulkan", "cuda", "ort"}
    assert not here & set(absent)
    assert all(absent.values())
    assert json.loads(json.dumps(found.to_json()))["devices"][0]["label"] == "CPU"


def test_the_runtime_lists_the_devices_without_the_compiler() -> None:
    found = heterocc.runtime.devices()
    assert [d.label for d in found] == [d.label for d in found.devices] and len(found) == len(found.devices)
    assert found[0] is found.devices[0] and found[-1] is found.devices[-1]
    program = (
        "import sys\nfrom heterocc.runtime import devices\n"
        "assert [d for d in devices() if d.label == 'CPU']\n"
        "print([m for m in ('onnx', 'tvm', 'heterocc.compiler') if m in sys.modules])"
    )
    assert fresh(program).strip() == "[]"


def test_a_missing_driver_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> tuple[OpenCLDevice, ...]:
        raise DriverMissingError("OpenCL cannot be used: no library", hint="install one")

    monkeypatch.setattr(under_test, "opencl_devices", missing)
    assert Absent("opencl", "OpenCL cannot be used: no library", "install one") in inventory().absent
    assert driver_reason(Device(name="GPU", backend="opencl")) == "device GPU: OpenCL cannot be used: no library"


def test_what_a_device_lacks_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "opencl_devices", lambda: (GPU,))
    good = Device(name="GPU", backend="opencl", requires=("fp64", "cl_khr_subgroups"))
    assert driver_reason(good) is None
    poor = Device(name="GPU", backend="opencl", requires=("fp16", "cl_khr_fancy"))
    assert driver_reason(poor) == "device GPU (A GPU) lacks fp16, cl_khr_fancy"
    far = Device(name="GPU.1", backend="opencl", index=1)
    assert driver_reason(far) == "device GPU.1 is OpenCL device 1, but this machine has 1"


def test_code_for_another_gpu_architecture_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "usable_cuda_devices", lambda: (HOPPER,))
    reasons = {
        arch: driver_reason(Device(name="CUDA", backend="cuda", target=json.dumps({"arch": arch})))
        for arch in ("sm_90", "sm_90a", "sm_80", "sm_100f", "sm_92")
    }
    assert reasons["sm_90"] is None
    assert reasons["sm_90a"] is None
    assert reasons["sm_80"] == "the code for CUDA is for sm_80, but NVIDIA H100 80GB HBM3 is sm_90"
    assert reasons["sm_100f"] and reasons["sm_92"]
    assert driver_reason(Device(name="CUDA", backend="cuda")) == (
        "the bundle does not state the GPU architecture of the code for CUDA"
    )
    far = Device(name="CUDA.1", backend="cuda", index=1)
    assert driver_reason(far) == "device CUDA.1 is CUDA device 1, but this machine has 1"


@pytest.mark.parametrize(
    "target",
    [
        "{",
        "[]",
        "7",
        '{"arch": 3}',
        "[" * 10_000,
        "\x00",
        '{"arch": "sm_9²"}',
        '{"arch": "sm_' + "9" * 5000 + '"}',
    ],
    ids=["cut short", "list", "number", "no text", "nested", "control", "superscript", "long"],
)
def test_any_text_as_the_target_of_cuda_code_is_a_reason(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "usable_cuda_devices", lambda: (HOPPER,))
    assert driver_reason(Device(name="CUDA", backend="cuda", target=target)) is not None


@pytest.mark.parametrize(
    ("capability", "runs", "refused"),
    [
        ((8, 9), ("sm_80", "sm_86", "sm_89"), ("sm_87", "sm_90", "sm_75", "sm_89x", "sm_86a")),
        ((8, 7), ("sm_87", "sm_87a"), ("sm_80", "sm_86")),
        ((7, 5), ("sm_70", "sm_75"), ("sm_72",)),
        ((11, 0), ("sm_110", "sm_110a", "sm_110f"), ("sm_101", "sm_100")),
        ((10, 3), ("sm_100", "sm_100f", "sm_103"), ("sm_100a", "sm_101", "sm_101f")),
    ],
)
def test_machine_code_runs_within_a_major_version_but_for_tegra(
    capability: tuple[int, int], runs: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    gpu = dataclasses.replace(HOPPER, capability=capability)
    assert [arch for arch in (*runs, *refused) if gpu.runs(arch)] == list(runs)


def test_a_missing_cuda_driver_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> tuple[CudaDevice, ...]:
        raise DriverMissingError("CUDA cannot be used: no library", hint="install one")

    monkeypatch.setattr(under_test, "usable_cuda_devices", missing)
    assert Absent("cuda", "CUDA cannot be used: no library", "install one") in inventory().absent
    assert driver_reason(Device(name="GPU", backend="cuda")) == "device GPU: CUDA cannot be used: no library"


def test_what_a_vulkan_device_lacks_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "vulkan_devices", lambda: (CARD,))
    good = Device(name="GPU", backend="vulkan", requires=("int64", "fp16", "storage16"))
    assert driver_reason(good) is None
    poor = Device(name="GPU", backend="vulkan", requires=("int64", "fp64", "subgroup_arithmetic"))
    assert driver_reason(poor) == "device GPU (A card) lacks fp64, subgroup_arithmetic"
    far = Device(name="GPU.1", backend="vulkan", index=1)
    assert driver_reason(far) == "device GPU.1 is Vulkan device 1, but this machine has 1"


def test_a_missing_vulkan_driver_is_a_reason_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> tuple[VulkanDevice, ...]:
        raise DriverMissingError("Vulkan cannot be used: no library", hint="install one")

    monkeypatch.setattr(under_test, "vulkan_devices", missing)
    assert Absent("vulkan", "Vulkan cannot be used: no library", "install one") in inventory().absent
    assert driver_reason(Device(name="GPU", backend="vulkan")) == "device GPU: Vulkan cannot be used: no library"


def test_running_out_of_memory_differs_from_other_failures() -> None:
    for text in ("std::bad_alloc", "CUDA: out of memory", "clCreateBuffer: CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)"):
        error = device_fault(RuntimeError(text), "running partition 'p0'", "GPU")
        assert isinstance(error, DeviceMemoryError)
        assert error.message == f"GPU is out of memory while running partition 'p0': {text}"
        assert error.hint == "close other sessions"
    assert isinstance(device_fault(MemoryError(), "loading", "CPU"), DeviceMemoryError)
    other = device_fault(RuntimeError("Traceback (most recent call last):\n  File x\nit broke."), "loading", "CPU")
    assert type(other) is DeviceError
    assert other.message == "CPU failed while loading: it broke"


def test_a_failure_offers_the_first_other_variant_that_does_not_need_the_device() -> None:
    lists = ["GPU,ORT", "CPU,ORT", "CPU"]
    error = DeviceError("it failed", where="device ORT", hint="look")
    offer(error, ("GPU", "ORT"), lists)
    assert error.hint == "look; load(path, devices='CPU') takes a variant without ORT"
    for where, own, others in (
        (None, ("CPU",), lists),
        ("device ORT", ("ORT",), ["CPU,ORT"]),
        ("device p", ("ORT",), lists),
    ):
        plain = DeviceError("it failed", where=where)
        offer(plain, own, others)
        assert plain.hint is None


@pytest.mark.parametrize("api", ["opencl", "vulkan"])
def test_errors_of_the_plug_ins_keep_their_kind_and_name_the_partition(api: str) -> None:
    error = device_fault(RuntimeError(f"heterocc.{api}[memory]: no space"), "running partition 'p0'", "GPU")
    assert isinstance(error, DeviceMemoryError)
    assert error.message == "GPU failed while running partition 'p0': no space"
    assert error.where == "device GPU"


def test_the_loss_of_a_device_is_taken_by_one_thread() -> None:
    take_device_loss()
    lost = RuntimeError("VK_ERROR_DEVICE_LOST")
    with ThreadPoolExecutor(8) as threads:
        for _ in range(200):
            list(threads.map(lambda name: device_fault(lost, "running", name), "ABCDEFGH"))
            assert sorted(threads.map(lambda _: take_device_loss(), range(8))) == [False] * 7 + [True]
    device_fault(RuntimeError("VK_ERROR_UNKNOWN"), "running", "VULKAN")
    assert not take_device_loss()


def test_typed_errors_pass_through() -> None:
    typed = FeedError("as it is")
    assert device_fault(typed, "running", "CPU") is typed
