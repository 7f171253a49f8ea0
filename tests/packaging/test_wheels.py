from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


HETEROCC, RUNTIME = project(ROOT), project(ROOT / "packaging" / "runtime")


def test_heterocc_contains_the_runtime_and_never_asks_an_index_for_it() -> None:
    assert HETEROCC["version"] == RUNTIME["version"]
    needs = [*HETEROCC["dependencies"], *(n for names in HETEROCC["optional-dependencies"].values() for n in names)]
    assert not [n for n in needs if n.startswith("heterocc-runtime")]
    assert HETEROCC["scripts"].items() >= RUNTIME["scripts"].items()
    assert HETEROCC["entry-points"].items() >= RUNTIME["entry-points"].items()


@pytest.mark.parametrize("extra", ["sign", "serve", "ray"])
def test_an_extra_of_the_runtime_has_the_same_packages_in_both_distributions(extra: str) -> None:
    needs, alone = (d["optional-dependencies"][extra] for d in (HETEROCC, RUNTIME))
    assert needs == [n.replace("heterocc-runtime[", "heterocc[") for n in alone]


@pytest.mark.slow
def test_the_wheel_of_the_runtime_runs_a_bundle_in_an_environment_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts" / "wheels.py", "--output", tmp_path / "wheels", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MB without numpy; ran sample.hcb" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="qemu-aarch64 is not installed (Debian: qemu-user)")
def test_the_wheel_for_aarch64_runs_a_bundle_in_an_emulator(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "scripts" / "wheel_aarch64.py", "--output", tmp_path / "aarch64"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "aarch64 ran a bundle, whose results are right" in done.stdout


@pytest.mark.slow
def test_the_steps_of_the_dockerfile_give_a_command_that_runs_a_bundle() -> None:
    command = [sys.executable, ROOT / "scripts" / "container_check.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it runs" in done.stdout and "it answers, and ends on SIGTERM" in done.stdout
