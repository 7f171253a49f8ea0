"""The host's CPU: /proc/cpuinfo translated to LLVM's names."""

from __future__ import annotations

import dataclasses
import warnings

import pytest

from heterocc.compiler.devices import host
from heterocc.compiler.devices.host import (
    BASELINE,
    DETECTABLE,
    X86_LEVELS,
    code_features,
    host_cpu,
    is_this_cpu,
    parse_cpuinfo,
    runs_here,
    x86_level,
)
from tests.compiler.lower.lowered import CPU

FLAGS = "fpu sse sse2 ssse3 cx16 sse4_1 sse4_2 movbe popcnt xsave avx f16c lahf_lm abm fma pni bmi1 avx2 bmi2"
HASWELL = (
    f"processor\t: 0\nmodel name\t: An Old CPU\nbogomips\t: 6784.12\nflags\t\t: {FLAGS}\n"
    f"\nprocessor\t: 1\nflags\t\t: {FLAGS} avx512f\n"
)


def test_a_cpu_is_named_by_its_level() -> None:
    cpu = parse_cpuinfo(HASWELL, arch="x86_64", cores=4, clock=None)
    assert cpu.target == {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3"}
    assert cpu.name == "An Old CPU"


def test_the_clock_is_the_nominal_one() -> None:
    cpu = parse_cpuinfo(HASWELL, arch="x86_64", cores=4, clock=None)
    assert cpu.clock == 3.4e9
    assert cpu.flops == 4 * 3.4e9 * 8 * 2 * 2
    assert parse_cpuinfo(HASWELL, arch="x86_64", cores=4, clock=2e9).clock == 2e9


def test_features_beyond_the_level_are_named_one_by_one() -> None:
    flags = f"{FLAGS} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni"
    cpu = parse_cpuinfo(f"flags : {flags}\n", arch="x86_64", cores=1, clock=1e9)
    assert cpu.target["mcpu"] == "x86-64-v4"
    assert cpu.target["mattr"] == ("+avx512vnni", "-prefer-256-bit")
    assert "avx512vnni" in code_features(cpu.target)


def test_a_hidden_feature_lowers_the_level() -> None:
    cpu = parse_cpuinfo(HASWELL.replace(" fma", ""), arch="x86_64", cores=4, clock=None)
    assert cpu.target["mcpu"] == "x86-64-v2"


def test_an_arm_cpu_is_generic_with_features() -> None:
    text = "processor : 0\nFeatures : fp asimd aes sha2 crc32 atomics fphp asimdhp asimddp\n"
    cpu = parse_cpuinfo(text, arch="arm64", cores=4, clock=1.5e9)
    assert cpu.target == {
        "kind": "llvm",
        "mtriple": "aarch64-linux-gnu",
        "mcpu": "generic",
        "mattr": ("+dotprod", "+fullfp16", "+lse"),
    }
    assert code_features(cpu.target) == ("dotprod", "fullfp16", "lse")


@pytest.mark.parametrize(
    ("family", "flags", "model"),
    [("25", " avx512f", "znver4"), ("25", "", None), ("26", " avx512f", "znver5"), ("23", " avx512f", None)],
)
def test_a_cpu_whose_code_differs_from_that_for_others_with_its_features_is_named(
    family: str, flags: str, model: str | None
) -> None:
    text = f"vendor_id : AuthenticAMD\ncpu family : {family}\nmodel name : AMD EPYC\nflags : avx2 fma{flags}\n"
    cpu = parse_cpuinfo(text, arch="x86_64", cores=4, clock=None)
    assert cpu.model == model and cpu.target.get("model") == model


def test_without_a_cpuinfo_the_baseline_is_assumed() -> None:
    cpu = parse_cpuinfo("", arch="x86_64", cores=0, clock=None)
    assert (cpu.target["mcpu"], cpu.cores, cpu.clock) == ("x86-64", 1, 2e9)


def test_code_for_this_cpu_runs_here() -> None:
    assert runs_here(host_cpu().target)
    assert x86_level(frozenset()) == "x86-64"


def test_the_levels_are_llvms() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tvm
        from tvm.target import codegen
    for level, features in X86_LEVELS.items():
        target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": level})
        assert {str(f) for f in codegen.llvm_get_cpu_features(target)} & DETECTABLE == features | BASELINE["x86_64"]


@pytest.mark.parametrize(("cpu", "has", "has_not"), [("znver4", "avx512vnni", "amx"), ("haswell", "avx2", "avx512f")])
def test_llvm_is_asked_about_a_cpu_that_is_no_level(cpu: str, has: str, has_not: str) -> None:
    found = code_features({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": cpu})
    assert has in found
    assert has_not not in found


@pytest.mark.parametrize("given", [True, False])
def test_registers_for_matrices_count_only_with_the_permission_of_the_system(
    monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    flags = f"{FLAGS} avx512f avx512bw avx512cd avx512dq avx512vl amx_tile amx_int8"
    cpu = parse_cpuinfo(f"flags : {flags}\n", arch="x86_64", cores=1, clock=1e9)
    monkeypatch.setattr(host, "parse_cpuinfo", lambda *_, **__: cpu)
    monkeypatch.setattr(host, "may_use_matrices", lambda: given)
    found = host.host_cpu.__wrapped__()
    assert {"amx-tile", "amx-int8"} & found.features == ({"amx-tile", "amx-int8"} if given else set())
    assert "avx512f" in found.features and ("+amx-int8" in found.target["mattr"]) == given


def test_a_device_is_this_cpu_only_with_its_target_and_present() -> None:
    assert is_this_cpu(CPU) and is_this_cpu(dataclasses.replace(CPU, target=host_cpu().target))
    assert not is_this_cpu(dataclasses.replace(CPU, target={"kind": "llvm", "mcpu": "x86-64"}))
    assert not is_this_cpu(dataclasses.replace(CPU, present=False))
