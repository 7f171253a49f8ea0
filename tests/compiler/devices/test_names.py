"""From `--devices GPU,CPU` to devices."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest

from heterocc.artifacts.errors import (
    DeviceFileError,
    DriverMissingError,
    PropertyError,
    UnknownDeviceError,
    command_form,
)
from heterocc.compiler.devices.choice import ModelTraits
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.lists import parse_list
from heterocc.compiler.devices.names import ORT_IS_LAST, known_devices, resolve_devices, resolve_lists
from heterocc.compiler.devices.present import Accelerators, accelerators, target_device
from heterocc.runtime.machine.found import found_cpu, found_cuda, found_opencl
from tests.sample_devices import DIE, HOPPER

DISCRETE = TargetDevice("OPENCL", "opencl", 0, {"kind": "opencl"}, unit="discrete", description="a card")
INTEGRATED = TargetDevice("OPENCL.1", "opencl", 1, {"kind": "opencl"}, unit="integrated", description="on the die")
POCL = TargetDevice("OPENCL", "opencl", 0, {"kind": "opencl"}, unit="cpu", software=True, description="PoCL")


LAVAPIPE = TargetDevice("VULKAN", "vulkan", 0, {"kind": "vulkan"}, unit="cpu", software=True, description="lavapipe")
NONE = Accelerators()


def here(*devices: TargetDevice) -> Accelerators:
    return Accelerators(devices)


def names(devices: tuple[TargetDevice, ...]) -> list[str]:
    return [d.name for d in devices]


def test_no_list_means_cpu_then_onnx_runtime() -> None:
    devices, notes = resolve_devices(present=NONE)
    assert names(devices) == ["CPU", "ORT"]
    assert [d.backend for d in devices] == ["cpu", "ort"]
    assert notes == ()


@pytest.mark.parametrize("empty", [",", " , ", []])
def test_an_empty_list_is_an_error(empty: str | list[str]) -> None:
    with pytest.raises(UnknownDeviceError, match="list of devices is empty"):
        resolve_devices(empty, present=NONE)


@pytest.mark.parametrize("text", ["CPU,", "CPU,,ORT", ",CPU"])
def test_an_empty_name_in_a_list_is_an_error(text: str) -> None:
    with pytest.raises(UnknownDeviceError, match=r"empty name[\s\S]*one comma stands between two names"):
        resolve_devices(text, present=NONE)


@pytest.mark.parametrize("name", ["TPU", "CPU.1", "OPENCL", "VULKAN", "vulkan.1", "GPU.1", "CPU0", "GPU.x", "ORT.2"])
def test_an_unknown_device_is_an_error_that_lists_what_is_known(name: str) -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        resolve_devices(name, present=NONE)
    assert name in caught.value.message
    assert caught.value.hint == "known devices: CPU, GPU, ORT, AUTO"
    assert caught.value.exit_code == 2


def test_cuda_without_a_driver_is_an_error_whose_hint_names_the_device_file() -> None:
    without = Accelerators(missing=(("cuda", "CUDA cannot be used: libcuda.so.1 was not found"),))
    with pytest.raises(DriverMissingError, match=r"libcuda\.so\.1") as caught:
        resolve_devices("CUDA", present=without)
    assert "target.arch" in str(caught.value.hint)


def test_names_match_whatever_their_case_and_keep_their_order() -> None:
    devices, _ = resolve_devices("cpu,Opencl.1,gpu", present=here(DISCRETE, INTEGRATED))
    assert names(devices) == ["CPU", "OPENCL.1", "GPU"]
    assert [d.index for d in devices] == [0, 1, 0]


@pytest.mark.parametrize("text", ["CPU,CPU", "ORT,CPU,ort", "CPU,cpu"])
def test_a_device_listed_twice_is_an_error(text: str) -> None:
    with pytest.raises(UnknownDeviceError, match="listed twice"):
        resolve_devices(text, present=NONE)


def test_two_names_of_one_device_are_an_error() -> None:
    with pytest.raises(UnknownDeviceError, match="'GPU' and 'OPENCL' are the same device"):
        resolve_devices("GPU,OPENCL", present=here(DISCRETE))


def test_gpu_is_hardware_before_software() -> None:
    (device,), notes = resolve_devices("GPU", present=here(POCL, INTEGRATED))
    assert device.index == 1
    assert notes == ()


def test_gpu_is_vulkan_hardware_before_opencl_hardware() -> None:
    card = TargetDevice("VULKAN", "vulkan", 0, {"kind": "vulkan"}, unit="discrete", description="a card")
    (device,), notes = resolve_devices("GPU", present=here(DISCRETE, card))
    assert (device.backend, notes) == ("vulkan", ())


def test_gpu_is_opencl_before_vulkan_if_both_are_software() -> None:
    (device,), notes = resolve_devices("GPU", present=here(LAVAPIPE, POCL))
    assert (device.backend, len(notes)) == ("opencl", 1)


def test_gpu_is_a_software_device_only_with_a_note() -> None:
    (device,), notes = resolve_devices("GPU", present=here(POCL))
    assert device.software
    assert notes == ("GPU is a software device, PoCL: no GPU was found; `heterocc devices` shows what is missing",)


def test_gpu_without_any_device_is_a_generic_target_that_is_not_checked() -> None:
    (device,), notes = resolve_devices("GPU", present=NONE)
    assert (device.name, device.backend, device.present) == ("GPU", "opencl", False)
    assert len(notes) == 1
    assert "not checked" in notes[0]


def test_gpu_with_an_index_counts_hardware() -> None:
    (device,), _ = resolve_devices(
        "GPU.1", present=here(POCL, INTEGRATED, TargetDevice("OPENCL.2", "opencl", 2, unit="discrete"))
    )
    assert (device.name, device.index) == ("GPU.1", 2)


def test_onnx_runtime_is_last_wherever_it_is_listed() -> None:
    devices, notes = resolve_devices("ORT,CPU", present=NONE)
    assert names(devices) == ["CPU", "ORT"]
    assert notes == (ORT_IS_LAST,)


@pytest.mark.parametrize(
    ("text", "present", "chosen"),
    [
        ("AUTO", (), "CPU"),
        ("", (), "CPU"),
        ("AUTO:", (), "CPU"),
        (" ", (INTEGRATED,), "GPU,CPU"),
        ("HETERO", (INTEGRATED,), "GPU,CPU"),
        ("AUTO", (POCL,), "CPU"),
        ("AUTO", (INTEGRATED,), "GPU,CPU"),
        ("AUTO,CPU", (INTEGRATED,), "GPU,CPU"),
        ("AUTO,CPU", (), "CPU"),
        ("AUTO,CPU,ORT", (INTEGRATED,), "GPU,CPU,ORT"),
        ("AUTO:-CPU", (INTEGRATED,), "GPU"),
        ("AUTO:GPU,CPU,-CPU", (INTEGRATED,), "GPU"),
        ("AUTO:-GPU", (INTEGRATED,), "CPU"),
        ("AUTO:GPU", (INTEGRATED,), "GPU"),
        ("AUTO:CPU,OPENCL,OPENCL.1", (DISCRETE, INTEGRATED), "OPENCL,CPU"),
        ("AUTO:OPENCL,OPENCL.1,-OPENCL", (DISCRETE, INTEGRATED), "OPENCL.1"),
        ("auto:cpu,opencl.1", (DISCRETE, INTEGRATED), "OPENCL.1,CPU"),
        ("AUTO:CPU", (DISCRETE,), "CPU"),
        ("AUTO:CUDA,CPU", (), "CPU"),
        ("AUTO:VULKAN,OPENCL.7,CUDA.1,OPENCL", (DISCRETE,), "OPENCL"),
    ],
)
def test_auto_chooses_one_device_by_kind_and_leaves_the_rest_to_the_cpu(
    text: str, present: tuple[TargetDevice, ...], chosen: str
) -> None:
    devices, notes = resolve_devices(text, present=here(*present))
    assert names(devices) == chosen.split(",")
    assert any(note.startswith(f"AUTO chose {names(devices)[0]} (") for note in notes)
    rest = f"CPU runs the nodes that {names(devices)[0]} lacks; AUTO:-CPU forbids it"
    assert (rest in notes) == (",CPU" in chosen)
    assert len([note for note in notes if "skipped" in note]) == sum(text.count(n) for n in ("CUDA", "VULKAN", "L.7"))


def test_a_hetero_list_is_the_list() -> None:
    for text in ("HETERO:GPU,CPU", "hetero:gpu,cpu", ["HETERO:GPU", "CPU"]):
        assert resolve_devices(text, present=here(DISCRETE)) == resolve_devices("GPU,CPU", present=here(DISCRETE))
    assert resolve_devices("HETERO:AUTO", present=here(DISCRETE)) == resolve_devices("AUTO", present=here(DISCRETE))


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        ("MULTI:GPU,CPU", ["GPU,CPU", "CPU"]),
        ("MULTI", ["GPU,CPU", "CPU"]),
        ("MULTI:", ["GPU,CPU", "CPU"]),
        ("MULTI:CPU,OPENCL.1,OPENCL", ["CPU", "OPENCL.1,CPU", "OPENCL,CPU"]),
        ("MULTI:OPENCL.1,OPENCL", ["OPENCL.1", "OPENCL"]),
        ("MULTI:CUDA,GPU,CPU,ORT", ["GPU,CPU,ORT", "CPU,ORT"]),
        ("MULTI:-CPU", ["GPU"]),
    ],
)
def test_multi_is_a_list_for_each_device(text: str, lists: list[str]) -> None:
    found, notes = resolve_lists([parse_list(text), parse_list("CPU,ORT")], present=here(DISCRETE, INTEGRATED))
    assert [",".join(names(devices)) for devices in found] == [*lists, "CPU,ORT"]
    each = "one variant, for GPU, the only device" if lists == ["GPU"] else "a variant for each of"
    assert any(note.startswith(f"MULTI compiles {each}") for note in notes)
    assert ("CUDA" in text) == any("MULTI skipped CUDA" in note for note in notes)


@pytest.mark.parametrize("text", ["AUTO:TPU,CPU", "AUTO:-TPU", "MULTI:TPU", "AUTO:CUDA", "AUTO:-CPU,-GPU", "MULTI:ORT"])
def test_a_wrong_or_absent_name_with_nothing_else_is_an_error(text: str) -> None:
    with pytest.raises(UnknownDeviceError):
        resolve_devices(text, present=NONE)


CARD_OF_1_GB = dataclasses.replace(DISCRETE, memory=10**9)


@pytest.mark.parametrize(
    ("traits", "present", "chosen", "reason"),
    [
        (ModelTraits(flops=5e9), (INTEGRATED,), "GPU", None),
        (ModelTraits(), (INTEGRATED,), "GPU", None),
        (ModelTraits(flops=1e6), (DISCRETE,), "CPU", "because the model is small (1 MFLOP)"),
        (ModelTraits(quantised=True, flops=5e9), (INTEGRATED,), "CPU", "because the model is quantised"),
        (ModelTraits(quantised=True, flops=5e9), (DISCRETE,), "GPU", "because the model is quantised"),
        (ModelTraits(flops=5e9, weights=2 * 10**9), (CARD_OF_1_GB,), "CPU", "2000 MB, exceed the memory of GPU"),
        (ModelTraits(flops=5e9, weights=10**8), (CARD_OF_1_GB,), "GPU", None),
        (ModelTraits(flops=1e6), (POCL,), "CPU", "small"),
    ],
)
def test_auto_looks_at_the_model(
    traits: ModelTraits, present: tuple[TargetDevice, ...], chosen: str, reason: str | None
) -> None:
    devices, notes = resolve_devices("AUTO", present=here(*present), traits=lambda: traits)
    assert names(devices)[0] == chosen
    assert notes[0].endswith("(CPU)") if reason is None else reason in notes[0]


def test_auto_prefers_a_device_that_computes_the_models_precision() -> None:
    slim = TargetDevice("OPENCL", "opencl", unit="discrete", dtypes=frozenset(["float32"]))
    devices, _ = resolve_devices(
        "AUTO",
        present=here(slim),
        traits=lambda: ModelTraits(frozenset(["float64"])),
    )
    assert names(devices) == ["CPU"]


def test_auto_keeps_onnx_runtime_as_the_last_resort() -> None:
    devices, _ = resolve_devices("AUTO:GPU,CPU,ORT", present=here(DISCRETE))
    assert names(devices) == ["GPU", "CPU", "ORT"]
    devices, _ = resolve_devices("AUTO,ORT", present=NONE)
    assert names(devices) == ["CPU", "ORT"]


@pytest.mark.parametrize("text", ["AUTO:,", "AUTO:ORT", "AUTO:CPU,AUTO", "AUTO:CPU,", "GPUAUTO:CPU"])
def test_auto_without_candidates_is_an_error(text: str) -> None:
    with pytest.raises(UnknownDeviceError):
        resolve_devices(text, present=NONE)


def test_a_list_of_names_reads_as_its_text() -> None:
    assert resolve_devices(["AUTO:GPU", "CPU"], present=here(DISCRETE)) == resolve_devices(
        "AUTO:GPU,CPU", present=here(DISCRETE)
    )


def test_a_device_file_adds_a_device_and_may_replace_the_cpu(tmp_path: Path) -> None:
    gpu, cpu = tmp_path / "gpu.toml", tmp_path / "cpu.toml"
    gpu.write_text('name = "board"\nbackend = "opencl"\n')
    cpu.write_text('name = "CPU"\nbackend = "cpu"\ntarget = {mtriple = "riscv64-linux-gnu", mcpu = "generic"}\n')
    devices, notes = resolve_devices("BOARD,CPU", [gpu, cpu], present=NONE)
    assert names(devices) == ["board", "CPU"]
    assert [d.present for d in devices] == [False, False]
    assert devices[1].target["mtriple"] == "riscv64-linux-gnu"
    assert len(notes) == 2
    with pytest.raises(DeviceFileError, match="described twice"):
        resolve_devices("CPU", [cpu, cpu], present=NONE)


def test_known_devices_are_one_of_each_name() -> None:
    found = names(known_devices())
    assert (found[0], found[-1]) == ("CPU", "ORT") and len({*found}) == len(found)


def test_a_property_reaches_only_the_device_it_names() -> None:
    plain, _ = resolve_devices("GPU.1,GPU,CPU,ORT", present=here(DISCRETE, INTEGRATED))
    devices, _ = resolve_devices(
        "GPU.1,GPU,CPU,ORT", properties=["cpu.threads=4", "GPU.1.profile=on"], present=here(DISCRETE, INTEGRATED)
    )
    assert [dict(d.properties) for d in devices] == [{"profile": "on"}, {}, {"threads": "4"}, {}]
    assert devices[1] == plain[1]
    assert devices[3] == plain[3]


def test_a_property_of_the_target_changes_the_code_and_not_the_bundles_properties() -> None:
    (cpu, ort), _ = resolve_devices("CPU,ORT", properties=["CPU.mcpu=x86-64-v2", "CPU.mtriple=x86_64-linux-gnu"])
    assert cpu.target == {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v2"}
    assert not cpu.properties
    assert not ort.target


def test_code_for_another_cpu_cannot_be_checked_here() -> None:
    (cpu,), _ = resolve_devices("CPU", properties=["CPU.mtriple=riscv64-linux-gnu"])
    assert not cpu.present


def test_features_add_to_those_of_the_named_cpu() -> None:
    given = ["CPU.mtriple=x86_64-linux-gnu", "CPU.mcpu=x86-64-v3", "CPU.mattr=+avx512f,-fma"]
    (cpu,), _ = resolve_devices("CPU", properties=given)
    assert cpu.target["mattr"] == ("+avx512f", "-fma")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("threads=4", "not of the form"),
        ("CPU.threads", "not of the form"),
        ("CPU.=4", "not of the form"),
        ("CPU.threads=", "not of the form"),
        (".threads=4", "not of the form"),
        ("GPU.threads=4", "device 'GPU' is not listed"),
        ("CPU.speed=9", "has no property 'speed'"),
        ("ORT.mcpu=znver5", "has no property 'mcpu'"),
        ("CPU.threads=0", "from 1 to 1024"),
        ("CPU.threads=-1", "from 1 to 1024"),
        ("CPU.threads=many", "from 1 to 1024"),
        ("CPU.threads=4096", "from 1 to 1024"),
        ("CPU.profile=maybe", "must be on or off"),
        ("CPU.precision=f16", "CPU kernels keep all values in float32"),
        ("ORT.precision=f16", "has no property 'precision'"),
        ("CPU.precision=int4", "must be f32"),
        ("CPU.kv_precision=int8", "8 bits need scales"),
        ("CPU.mcpu=a b", "a name that LLVM knows"),
        ("CPU.mattr=avx2", "with . or - before it"),
    ],
)
def test_a_wrong_property_is_an_error(spec: str, message: str) -> None:
    with pytest.raises(PropertyError, match=message) as caught:
        resolve_devices("CPU,ORT", properties=[spec])
    assert caught.value.exit_code == 2
    assert "--> --property" in caught.value.command_text()


@pytest.mark.parametrize("spelling", ["f16", "fp16", "float16"])
def test_half_precision_is_for_devices_that_have_it(spelling: str) -> None:
    able = DISCRETE
    unable = dataclasses.replace(DISCRETE, dtypes=DISCRETE.dtypes - {"float16"})
    devices, _ = resolve_devices("OPENCL.0,CPU", properties=[f"opencl.0.precision={spelling}"], present=here(able))
    assert [d.half for d in devices] == [True, False]
    assert devices[0].properties == {"precision": "f16"}
    with pytest.raises(PropertyError, match="has no half precision") as caught:
        resolve_devices("OPENCL.0,CPU", properties=[f"OPENCL.0.precision={spelling}"], present=here(unable))
    assert caught.value.code == "HC405" and caught.value.hint


def test_a_property_given_twice_with_two_values_is_an_error() -> None:
    with pytest.raises(PropertyError, match="given twice"):
        resolve_devices("CPU", properties=["CPU.threads=2", "CPU.threads=4"])
    (cpu,), _ = resolve_devices("CPU", properties=["CPU.profile=on", "CPU.profile=true"])
    assert cpu.properties == {"profile": "on"}


@pytest.mark.parametrize("backend", ["opencl", "vulkan"])
def test_a_back_end_without_a_driver_is_an_error_that_says_why(backend: Literal["opencl", "vulkan"]) -> None:
    bare = Accelerators(missing=((backend, "it cannot be used: no driver"),))
    with pytest.raises(DriverMissingError, match="no driver") as caught:
        resolve_devices(f"{backend},CPU", present=bare)
    assert "GPU" in (caught.value.hint or "")


def test_a_generic_gpu_says_why_there_is_none() -> None:
    _, notes = resolve_devices("GPU,CPU", present=Accelerators(missing=(("opencl", "it cannot be used: no driver"),)))
    assert "no driver" in notes[0] and notes[0].endswith("call verify_bundle on a machine with a GPU")
    assert command_form(notes[0]).endswith("run `heterocc verify` on a machine with a GPU")


PLAIN = dataclasses.replace(
    DIE, memory=8 << 30, max_alloc=2 << 30, max_group=1024, compute_units=40, clock_mhz=2000, unified=False
)


def test_a_cuda_devices_rates_follow_from_what_the_driver_reports() -> None:
    device = target_device(found_cuda(1, HOPPER))
    assert (device.name, device.backend, device.index, device.unit) == ("CUDA.1", "cuda", 1, "discrete")
    assert device.description == f"{HOPPER.name} (CUDA)" and device.memory == HOPPER.memory
    assert device.target["arch"] == HOPPER.arch and device.max_buffer is None
    assert device.flops == 2.0 * HOPPER.multiprocessors * 128 * HOPPER.clock_khz * 1e3
    assert device.bandwidth == 2.0 * HOPPER.memory_clock_khz * 1e3 * HOPPER.memory_bus_bits / 8


def test_what_is_not_an_accelerator_is_not_made_one() -> None:
    with pytest.raises(ValueError, match="CPU is not an accelerator"):
        target_device(found_cpu())


def test_the_limits_of_an_opencl_device_are_target_attributes() -> None:
    device = target_device(found_opencl(1, PLAIN))
    assert (device.name, device.index, device.unit) == ("OPENCL.1", 1, "discrete")
    assert (device.memory, device.max_buffer) == (8 << 30, 2 << 30)
    assert device.target["max_num_threads"] == 256
    assert device.target["max_shared_memory_per_block"] == 65536
    assert "float16" in device.dtypes
    assert "float64" not in device.dtypes
    assert device.flops == 2 * 40 * 64 * 2e9


@pytest.mark.parametrize(
    ("change", "unit"),
    [({"unified": True}, "integrated"), ({"type": "cpu"}, "cpu"), ({"software": True}, "cpu")],
)
def test_what_shares_the_hosts_memory_or_cores_is_no_discrete_gpu(change: dict[str, Any], unit: str) -> None:
    assert target_device(found_opencl(0, dataclasses.replace(PLAIN, **change))).unit == unit


@pytest.mark.opencl
def test_the_driver_here_is_found() -> None:
    found = accelerators()
    if found.missing:
        pytest.skip(found.missing[0][1])
    assert next(d.name for d in found.devices) == "OPENCL"
    assert all(d.memory and (d.max_buffer or (d.memory if d.backend == "cuda" else 0)) for d in found.devices)
    assert all((d.max_buffer or 0) <= (d.memory or 0) for d in found.devices)
