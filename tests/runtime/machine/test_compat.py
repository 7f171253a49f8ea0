from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest

from heterocc.artifacts.frozen import replaced
from heterocc.artifacts.manifest import Device, Partition, Producer, TensorSpec, Variant
from heterocc.runtime.machine import compat
from heterocc.runtime.machine.compat import (
    HostInfo,
    cpu_features,
    has_onnxruntime,
    host,
    known_features,
    plain_arch,
    why_not,
)
from heterocc.runtime.native import tvm_libraries

ZEN5 = """\
processor\t: 0
model name\t: AMD EPYC
flags\t\t: fpu cx8 cmov mmx fxsr sse sse2 pni pclmulqdq ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes xsave avx f16c \
rdrand lahf_lm abm bmi1 avx2 bmi2 avx512f avx512dq avx512bw avx512vl avx_vnni avx512_bf16 avx512_vnni sha_ni hypervisor
bogomips\t: 5800.00
"""
NEOVERSE = """\
processor\t: 0
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp sve bf16 i8mm
CPU implementer\t: 0x41
"""
HERE = HostInfo("x86_64", cpu_features(ZEN5, "x86_64"), "0.27.0.post1", True)
TVM = Producer(heterocc="0.1.0", tvm="0.27.0")


def variant(*devices: Device, unused: Iterable[Device] = ()) -> Variant:
    """A variant with one partition for each of `devices`."""
    value = TensorSpec(name="x", dtype="float32", shape=(1,))
    parts = tuple(
        Partition(
            name=f"p{i}",
            device=i,
            kind="onnx" if d.backend == "ort" else "tvm",
            code="c",
            inputs=(),
            outputs=(),
            nodes=("n",),
        )
        for i, d in enumerate(devices)
    )
    return Variant(
        name="v",
        devices=(*devices, *unused),
        values=(value,),
        inputs=(0,),
        outputs=(0,),
        partitions=parts,
        plan="p",
        summary="",
    )


def cpu(*features: str, arch: str = "x86_64") -> Device:
    return Device(name="CPU", backend="cpu", arch=arch, cpu_features=features)


GPU = Device(name="GPU.1", backend="opencl", index=1, arch="x86_64", cpu_features=("sse2",))
ORT = Device(name="ORT", backend="ort")


def no_question(device: Device) -> str | None:
    raise AssertionError(f"asked for a driver of {device.name}")


def test_flags_of_an_x86_processor_get_their_llvm_names() -> None:
    features = HERE.cpu_features
    assert {"sse3", "sse4.1", "sse4.2", "crc32", "lzcnt", "bmi", "rdrnd", "sahf", "pclmul", "sha"} <= features
    assert {"avx512f", "avx512vnni", "avx512bf16", "avxvnni", "fma", "f16c"} <= features
    assert not {"pni", "abm", "hypervisor", "avx512cd"} & features


def test_flags_of_an_arm_processor_get_their_llvm_names() -> None:
    features = cpu_features(NEOVERSE, "aarch64")
    assert {"fp-armv8", "neon", "aes", "sha2", "crc", "lse", "fullfp16", "rdm", "dotprod", "sve", "i8mm"} <= features
    assert not {"asimd", "evtstrm", "sve2"} & features


def test_only_what_every_core_has_counts() -> None:
    little = NEOVERSE.replace(" sve ", " ")
    assert "sve" not in cpu_features(NEOVERSE + "\n" + little, "aarch64")
    assert "dotprod" in cpu_features(NEOVERSE + "\n" + little, "aarch64")


def test_no_cpuinfo_means_no_features() -> None:
    assert cpu_features("", "x86_64") == cpu_features(ZEN5, "riscv64") == frozenset()


def test_one_architecture_has_one_name() -> None:
    assert plain_arch("AMD64") == "x86_64" and plain_arch("arm64") == "aarch64" and plain_arch("riscv64") == "riscv64"


def test_this_machine_is_seen_without_importing_what_is_looked_for() -> None:
    code = (
        "import sys; from heterocc.runtime.machine.compat import has_onnxruntime, host; h = host();"
        "print(h.arch, h.tvm, has_onnxruntime());"
        "print([m for m in ('tvm', 'onnx', 'onnxruntime', 'heterocc.compiler') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[0] == f"{host().arch} {host().tvm} {has_onnxruntime()}"
    assert out.splitlines()[1] == "[]"
    if host().arch == "x86_64":
        assert "sse2" in host().cpu_features


def test_what_the_compiler_may_ask_of_a_cpu_can_be_seen_here() -> None:
    from heterocc.compiler.devices.host import DETECTABLE, host_cpu

    assert known_features("x86_64") | known_features("aarch64") >= DETECTABLE
    assert host_cpu().features <= host().cpu_features


def test_a_variant_whose_needs_are_met_can_run() -> None:
    asked = []

    def drivers(device: Device) -> str | None:
        asked.append(device.name)
        return None

    assert why_not(variant(GPU, cpu("avx2", "avx512vnni"), ORT), TVM, HERE, drivers) == ()
    assert asked == ["GPU.1"]


def test_missing_cpu_features_are_named() -> None:
    (reason,) = why_not(variant(cpu("avx2", "amx-tile", "avx512fp16")), TVM, HERE, no_question)
    assert reason == "the code for CPU needs CPU features that this machine lacks: amx-tile, avx512fp16"


def test_features_of_an_instruction_set_yet_to_come_are_missing_and_hints_are_not() -> None:
    needs = ("fast-gather", "prefer-256-bit", "64bit", "slow-3ops-lea", "vzeroupper", "avx2048")
    (reason,) = why_not(variant(cpu(*needs)), TVM, HERE, no_question)
    assert reason.endswith("lacks: avx2048")


def test_code_of_another_architecture_is_refused_without_talk_of_features() -> None:
    (reason,) = why_not(variant(cpu("neon", arch="arm64")), TVM, HERE, no_question)
    assert reason == "the code for CPU is for arm64, this machine is x86_64"


def test_the_host_code_of_a_gpu_counts_as_well() -> None:
    (reason,) = why_not(variant(GPU), TVM, replaced(HERE, cpu_features=frozenset()), lambda _: None)
    assert "sse2" in reason


def test_a_drivers_reason_is_passed_on() -> None:
    reasons = why_not(variant(GPU, cpu()), TVM, HERE, lambda d: f"no device {d.index} for {d.backend}")
    assert reasons == ("no device 1 for opencl",)


@pytest.mark.parametrize(
    ("wanted", "here", "reason"),
    [
        ("0.27.0", "0.27.9", None),
        ("0.27.0", "0.28.0", "compiled with TVM 0.27.0, but TVM 0.28.0 is installed"),
        ("0.27.0", "1.27.0", "but TVM 1.27.0 is installed"),
        ("0.27.0", None, "are not installed"),
        (None, "0.27.0", "does not state"),
    ],
)
def test_tvm_is_compared_by_its_minor_series(wanted: str | None, here: str | None, reason: str | None) -> None:
    found = why_not(variant(cpu()), Producer(heterocc="0", tvm=wanted), replaced(HERE, tvm=here), no_question)
    assert found == () if reason is None else reason in found[0] and len(found) == 1


def test_onnx_runtime_is_needed_only_if_a_partition_is_in_it_and_tvm_likewise() -> None:
    bare = replaced(HERE, tvm=None, onnxruntime=False)
    assert why_not(variant(ORT), TVM, bare, no_question) == (
        "device ORT needs onnxruntime 1.31 or later, which is not installed (pip install onnxruntime ml_dtypes)",
    )
    assert why_not(variant(ORT), TVM, replaced(bare, onnxruntime=True), no_question) == ()


def test_a_device_without_partitions_is_not_needed() -> None:
    assert why_not(variant(cpu(), unused=[GPU, ORT]), TVM, replaced(HERE, onnxruntime=False), no_question) == ()


def test_without_a_copy_of_its_libraries_and_without_the_package_there_is_no_tvm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tvm_libraries, "_package_folders", lambda: ())
    monkeypatch.setattr(tvm_libraries, "package_version", lambda: None)
    assert tvm_libraries.tvm_version() == "0.27.0.post1"  # the copy that heterocc-runtime brings
    assert tvm_libraries.tvm_libraries().owner == "heterocc-runtime"
    monkeypatch.setattr(tvm_libraries, "_own_folders", lambda: iter(()))
    assert tvm_libraries.tvm_version() is None


@pytest.mark.parametrize("given", [True, False])
def test_code_that_multiplies_matrices_needs_the_permission_of_the_system_which_other_code_does_not_ask_for(
    monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    asked = []
    monkeypatch.setattr(compat, "may_use_matrices", lambda: asked.append(True) or given)
    here = replaced(HERE, cpu_features=cpu_features(ZEN5.replace(" avx2 ", " avx2 amx_tile amx_int8 "), "x86_64"))
    assert why_not(variant(cpu("avx2")), TVM, here, no_question) == () and not asked
    reasons = why_not(variant(cpu("avx2", "amx-int8", "amx-tile")), TVM, here, no_question)
    refused = "the code for CPU needs CPU features that the system does not permit this process to use: "
    assert reasons == (() if given else (f"{refused}amx-int8, amx-tile",))


def test_features_that_cannot_be_found_out_are_not_called_missing() -> None:
    blind = replaced(HERE, cpu_features=frozenset())
    (reason,) = why_not(variant(cpu("avx2")), TVM, blind, no_question)
    assert "/proc/cpuinfo" in reason and "lacks" not in reason
