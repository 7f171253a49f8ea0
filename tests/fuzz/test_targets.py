"""The fuzzing targets accept their seeds, and give a result or a typed error for damaged ones and stored inputs."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fuzz import many, native_seeds, targets
from tests.fuzz.targets import TARGETS, corpus, run

ROOT = Path(__file__).parents[2]
DAMAGED = 40
"""Damaged copies of each seed."""


def damaged(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 10))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0:
                changed[at:at] = changed[:at][-rng.choice((1, 20, 200)) :]
            case 1:
                del changed[at : at + rng.choice((1, 5, 50))]
            case _ if at < len(changed):
                changed[at] = rng.choice((0, 0xFF, 0x5B, 0x39, changed[at] ^ 1 << rng.randrange(8)))
    return bytes(changed)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_accepted_and_damaged_ones_are_accepted_or_refused(name: str) -> None:
    rng = random.Random(name)
    for data in TARGETS[name].seeds():
        assert run(name, data)
        for _ in range(DAMAGED):
            run(name, damaged(data, rng))


def test_inputs_that_found_faults_are_stored_for_targets_that_exist_and_are_refused_now() -> None:
    folders = sorted(path.name for path in targets.CORPUS.iterdir())
    assert folders and set(folders) <= set(TARGETS)
    for name in folders:
        for data in corpus(name):
            assert not run(name, data)


@pytest.mark.parametrize("name", many.TEXTUAL)
def test_structured_mutants_of_seeds_are_accepted_or_refused_and_not_all_alike(name: str) -> None:
    seeds = TARGETS[name].seeds()
    mutants = [many.seeded(name, number, seeds, many.TEXTUAL[name]) for number in range(DAMAGED)]
    assert len(set(mutants)) > DAMAGED // 2
    assert sum(run(name, data) for data in mutants) < DAMAGED


@pytest.mark.parametrize("name", many.NATIVE)
def test_the_parts_of_a_container_make_the_container(name: str) -> None:
    for data in native_seeds.SEEDS[name]():
        assert many.NATIVE[name](data).pack() == data


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opencl_module", "vulkan_module", "opencl_binaries", "request_data", "signatures"])
def test_the_guided_targets_run(name: str) -> None:
    if name == "signatures":
        pytest.importorskip("atheris", reason="atheris is not installed (the extra heterocc[fuzz])")
    elif shutil.which("clang++") is None and not list(Path("/usr/lib").glob("llvm-*/bin/clang++")):
        pytest.skip("no clang++ for the native targets (Debian: clang)")
    done = subprocess.run([ROOT / "scripts" / "fuzz.sh", "2", name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DONE   cov: " in done.stdout
