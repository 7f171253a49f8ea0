"""HETEROCC_REQUIRE: a device that it names must be found, so that tests of a device are not skipped unnoticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def collect(**environment: str) -> tuple[int, str]:
    """Exit status and messages of a pytest that only collects this file."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}, cwd=TESTS.parent
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("device", ["opencl", pytest.param("vulkan", marks=pytest.mark.slow)])
def test_a_required_device_that_is_missing_ends_the_run(device: str) -> None:
    fault = {f"HETEROCC_{device.upper()}_FAULT": "no-driver"}
    status, output = collect(HETEROCC_REQUIRE=device, **fault)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert f"asks for {device}, which the tests cannot use" in output
    assert collect(HETEROCC_REQUIRE="", **fault)[0] == pytest.ExitCode.OK


def test_a_required_gpu_that_is_missing_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"not a library")
    status, output = collect(HETEROCC_REQUIRE="cuda", LD_LIBRARY_PATH=str(tmp_path))
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "asks for cuda, which the tests cannot use: CUDA cannot be used" in output


def test_a_required_emulator_that_is_missing_ends_the_run() -> None:
    status, told = collect(HETEROCC_REQUIRE="aarch64", PATH="/nowhere")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "asks for aarch64, which the tests cannot use: qemu-aarch64 is not on the PATH (Debian: qemu-user)" in told


def test_a_required_browser_that_is_missing_ends_the_run() -> None:
    status, told = collect(HETEROCC_REQUIRE="browser", PATH="/nowhere")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "asks for browser, which the tests cannot use: chromium is not on the PATH" in told


def test_a_requirement_that_nobody_knows_ends_the_run() -> None:
    status, output = collect(HETEROCC_REQUIRE="opencI")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "it may name opencl, vulkan, spirv-val, aarch64" in output


@pytest.mark.xdist_group("together")
def test_a_group_of_tests_stays_on_one_worker(request: pytest.FixtureRequest) -> None:
    """xdist marks a group at the end of a test's name, which pytest 9.2 does not let it write."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@together")


def test_every_target_requires_what_is_installed_here() -> None:
    script = TESTS.parent / "scripts" / "required.sh"
    found = subprocess.run([script], capture_output=True, text=True, check=True).stdout.strip()
    status, output = collect(HETEROCC_REQUIRE=found)
    assert status == pytest.ExitCode.OK, output
    runs = [line for line in (TESTS.parent / "Makefile").read_text().splitlines() if "$(VENV)/pytest" in line]
    assert len(runs) >= 3
    assert [line for line in runs if "$(REQUIRE)" not in line and "--collect-only" not in line] == []
