"""The choice of the compiler for CUDA code, and its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterocc.artifacts.errors import CudaCompilerMissingError, DeviceError
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower import lowering_for
from heterocc.compiler.lower.cuda.toolchain import KernelRefusedError, Nvcc, find_compiler, fitting
from tests.compiler.lower.cuda_sample import HOPPER, multiply, needs_compiler, real_compiler


@needs_compiler
def test_the_compiler_names_the_kernel_that_it_refuses() -> None:
    compiler = real_compiler()
    assert compiler is not None
    good = 'extern "C" __global__ void good(float* a) {\n  a[0] = 1;\n}\n'
    bad = 'extern "C" __global__ void bad(float* a) {\n  a[0] = none;\n}\n'
    with pytest.raises(KernelRefusedError, match="none") as caught:
        compiler.cubin(good + bad, "sm_90")
    assert caught.value.kernel == "bad"
    with pytest.raises(CudaCompilerMissingError, match="no installed CUDA compiler supports sm_11: "):
        compiler.cubin(good, "sm_11")


@pytest.mark.parametrize(
    ("arch", "known"),
    [
        *(("sm_90", "sm_90"), ("sm_90a", "sm_90a"), ("sm_87", "sm_87"), ("sm_110", "sm_110")),
        *(("sm_91", "sm_90"), ("sm_129", "sm_121"), ("sm_88", "sm_86")),
        *(("sm_130", "compute_121"), ("sm_99", "sm_90")),
        *(
            ("sm_101", "compute_100"),
            ("sm_111", "compute_110"),
        ),  # Tegra's, and one that only Tegra's could stand in for
        *(("sm_70", None), ("sm_72", None), ("sm_130a", None), ("sm_70f", None)),
    ],
)
def test_a_gpu_that_the_compiler_does_not_know_gets_what_runs_on_it(arch: str, known: str | None) -> None:
    assert fitting(arch, (75, 80, 86, 87, 90, 100, 110, 120, 121)) == known


@needs_compiler
def test_a_gpu_newer_than_the_compiler_gets_code_that_its_driver_compiles(caplog: pytest.LogCaptureFixture) -> None:
    compiler = real_compiler()
    assert compiler is not None
    code = compiler.cubin('extern "C" __global__ void good(float* a) {\n  a[0] = 1;\n}\n', "sm_999")
    assert b".visible .entry good(" in code
    assert code.endswith(b"\0")  # the driver takes it as C text
    assert f"{compiler.name} does not support sm_999: its kernels are compiled for compute_" in caplog.text


def nvcc(home: Path, *supported: int) -> Nvcc:
    """A stand-in for the toolkit's compiler, whose output is its arguments."""
    program = home / "bin" / "nvcc"
    program.parent.mkdir(parents=True)
    listing = "; ".join(f"echo compute_{number}" for number in supported) or "exit 1"
    program.write_text(f'#!/bin/sh\nif [ "$1" = --list-gpu-arch ]; then {listing}; else echo "$*" >kernels; fi\n')
    program.chmod(0o755)
    return Nvcc(program)


def nvcc_alone(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Hide the compilers that are installed."""
    monkeypatch.setattr("heterocc.compiler.lower.cuda.toolchain.nvidia_folders", lambda: ())
    monkeypatch.setattr("heterocc.compiler.lower.cuda.toolchain.TOOLKIT", folder / "none")


@pytest.mark.parametrize(
    ("arch", "asked"),
    [("sm_61", "--cubin -arch=sm_61 "), ("sm_88", "--cubin -arch=sm_86 "), ("sm_100", "--ptx -arch=compute_90 ")],
)
def test_nvcc_is_asked_for_what_runs_on_the_gpu(
    arch: str, asked: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = nvcc(tmp_path, 61, 86, 87, 90).cubin("", arch)
    assert code.decode().startswith(asked)
    assert code.endswith(b"\0") == ("--ptx" in asked)  # the driver takes PTX as C text
    assert (f"nvcc does not support {arch}" in caplog.text) == (arch not in asked)


def test_a_compiler_without_the_architecture_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc_alone(monkeypatch, tmp_path)
    newer, older = nvcc(tmp_path / "13", 75, 80, 90), nvcc(tmp_path / "12", 50, 61, 90)
    env = {"CUDA_HOME": str(tmp_path / "13"), "PATH": str(tmp_path / "12" / "bin")}
    assert find_compiler("sm_90", env) == newer
    assert find_compiler("sm_61", env) == older
    with pytest.raises(CudaCompilerMissingError) as caught:
        find_compiler("sm_37", env)
    assert "sm_37: nvcc supports sm_75, sm_80, sm_90; nvcc supports sm_50, sm_61, sm_90" in caught.value.message
    assert "target.arch" in str(caught.value.hint)


def test_without_a_compiler_for_an_old_gpu_the_error_says_which_toolkit_has_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvcc_alone(monkeypatch, tmp_path)
    monkeypatch.setenv("PATH", str(nvcc(tmp_path, 75, 90).program.parent))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    pascal = TargetDevice("CUDA", "cuda", target={"kind": "cuda", "arch": "sm_61"}, present=False)
    work = multiply()
    with pytest.raises(CudaCompilerMissingError, match="supports sm_61: nvcc supports sm_75, sm_90") as caught:
        lowering_for(pascal).lower(type(work)("p0", work.model, pascal, work.nodes, work.inputs, work.outputs))
    assert "CUDA 12 toolkit" in str(caught.value.hint)


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("heterocc.compiler.lower.cuda.toolchain.nvidia_folders", lambda: ())
    monkeypatch.setattr("heterocc.compiler.lower.cuda.toolchain.TOOLKIT", tmp_path)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CudaCompilerMissingError, match="neither nvrtc nor nvcc") as caught:
        lowering_for(HOPPER).lower(multiply())
    assert "nvidia-cuda-nvrtc" in str(caught.value.hint)


def test_nvcc_is_found_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc_alone(monkeypatch, tmp_path)
    program = nvcc(tmp_path, 90)
    found = find_compiler("sm_90", {"CUDA_HOME": str(tmp_path), "PATH": ""})
    assert found == program
    program.program.write_text(program.program.read_text().replace('echo "$*" >kernels', "exit 1"))
    with pytest.raises(DeviceError, match="nvcc cannot compile for sm_90: it failed"):
        found.cubin("", "sm_90")


def test_an_nvcc_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvcc_alone(monkeypatch, tmp_path)
    broken = nvcc(tmp_path)
    with pytest.raises(DeviceError, match="does not list the architectures it supports") as caught:
        find_compiler("sm_90", {"CUDA_HOME": str(tmp_path), "PATH": ""})
    assert str(broken.program) in caught.value.message
