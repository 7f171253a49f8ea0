"""Partitions kept on disk without their weights."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.build.kept import lower_kept
from heterocc.compiler.devices.present import accelerators
from heterocc.compiler.files.blobs import DiskBlobs
from heterocc.compiler.lower import lowering_for
from heterocc.compiler.lower.arranged import elements
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.lower.backend import Lowering as BackEnd
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.runtime import fault_variables
from heterocc.runtime.fault_variables import WRONG_KERNEL
from tests.compiler.lower.lowered import job, model
from tests.compiler.small import save

node = helper.make_node
X = np.linspace(-2, 2, 60, dtype=np.float32).reshape(3, 20)
IMAGE = np.linspace(-2, 2, 2 * 8 * 8, dtype=np.float32).reshape(1, 2, 8, 8)


def product(scale: float = 1.0, transposed: int = 0) -> PartitionJob:
    """A product whose weight is packed, and which adds a bias."""
    weight = scale * np.linspace(-1, 1, 20 * 40, dtype=np.float32)
    constants = {"w": weight.reshape((40, 20) if transposed else (20, 40)), "b": np.arange(40, dtype=np.float32)}
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], name="product", transB=transposed)]
    return job(model(nodes, {"x": X}, ["y"], constants))


def filtered() -> PartitionJob:
    """A 3 x 3 convolution."""
    weight = np.random.default_rng(0).standard_normal((16, 2, 3, 3)).astype(np.float32)
    nodes = [node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])]
    return job(model(nodes, {"x": IMAGE}, ["y"], {"w": weight}))


def wide() -> PartitionJob:
    """A 3 x 3 convolution of many channels, which GPUs compute by minimal filtering."""
    weight = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    image = np.linspace(-2, 2, 64 * 12 * 12, dtype=np.float32).reshape(1, 64, 12, 12)
    nodes = [node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])]
    return job(model(nodes, {"x": image}, ["y"], {"w": weight}))


class Counted:
    """A lowering that counts its calls."""

    def __init__(self, lowering: BackEnd) -> None:
        self._lowering = lowering
        self.calls = 0

    def __call__(self, wanted: PartitionJob) -> LoweredPartition:
        self.calls += 1
        return self._lowering.lower(wanted)


class Lowering(Counted):
    """CPU lowering that counts its calls."""

    def __init__(self) -> None:
        super().__init__(CpuLowering())


@pytest.fixture
def cache(tmp_path: Path) -> DiskBlobs:
    return DiskBlobs(tmp_path, 1 << 26)


def same(a: LoweredPartition, b: LoweredPartition) -> bool:
    def parts(low: LoweredPartition) -> list[object]:
        arrays = [(p.dtype, p.shape, elements(p).tobytes()) for p in low.params]
        ways = [
            None if way is None else (elements(way.source).tobytes(), way.source.shape, way.layout)
            for way in low.arranged
        ]
        return [low.kind, low.code, low.param_names, low.kernels, low.cpu_features, low.alignment, arrays, ways]

    return parts(a) == parts(b)


@pytest.mark.parametrize("wanted", [product(), product(transposed=1), filtered()], ids=["plain", "turned", "filtered"])
def test_a_partition_is_lowered_once_and_read_with_the_same_code_and_weights(
    cache: DiskBlobs, wanted: PartitionJob
) -> None:
    lower = Lowering()
    first = lower_kept(wanted, cache, lower)
    second = lower_kept(wanted, cache, lower)
    assert lower.calls == 1
    assert same(first, second)
    assert any(way is not None for way in second.arranged), "no weight is packed, so the test shows little"


def test_a_kept_partition_holds_no_packed_weights(cache: DiskBlobs) -> None:
    big = np.ones((300, 500), np.float32)
    wanted = job(model([node("MatMul", ["x", "w"], ["y"], name="m")], {"x": np.ones((4, 300), "f")}, ["y"], {"w": big}))
    lower_kept(wanted, cache, CpuLowering().lower)
    stored = [path for path in cache.root.rglob("*") if path.is_file() and len(path.name) == 64]
    assert stored
    assert sum(path.stat().st_size for path in stored) < big.nbytes


def test_other_weights_and_other_devices_are_lowered_anew(cache: DiskBlobs) -> None:
    lower = Lowering()
    wanted = product()
    lower_kept(wanted, cache, lower)
    lower_kept(product(scale=2.0), cache, lower)
    other = dataclasses.replace(wanted.device, target={"kind": "llvm", "mtriple": "x86_64-linux-gnu"})
    lower_kept(dataclasses.replace(wanted, device=other), cache, lower)
    assert lower.calls == 3


def test_a_kept_partition_makes_its_dumps_when_they_are_read(cache: DiskBlobs) -> None:
    lower = Lowering()
    first = lower_kept(product(), cache, lower)
    second = lower_kept(product(), cache, lower)
    assert lower.calls == 1
    assert tuple(second.dumps) == tuple(first.dumps)


class Replaced(DiskBlobs):
    """A cache that has other bytes for every key."""

    content = b""

    def read(self, key: str) -> bytes:
        return self.content


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, (2).to_bytes(8, "little") + b"{}"])
def test_a_partition_is_lowered_if_its_file_has_another_form(tmp_path: Path, content: bytes) -> None:
    lower = Lowering()
    damaged = Replaced(tmp_path, 1 << 26)
    damaged.content = content
    lower_kept(product(), damaged, lower)
    assert lower.calls == 1


def test_a_wrong_kernel_is_neither_kept_nor_hidden_by_a_kept_partition(
    cache: DiskBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower = Lowering()
    lower_kept(product(), cache, lower)
    monkeypatch.setattr(fault_variables, "_honoured", set())  # as in a process that has not warned yet
    monkeypatch.setenv(WRONG_KERNEL, "another node")
    with pytest.warns(RuntimeWarning):
        lower_kept(product(), cache, lower)
    assert lower.calls == 2


@pytest.mark.parametrize("backend", ["opencl", "vulkan"])
@pytest.mark.parametrize("make", [product, filtered, wide], ids=["product", "filtered", "wide"])
def test_a_partition_for_a_gpu_is_read_with_the_same_code_and_weights(
    cache: DiskBlobs, backend: str, make: Callable[[], PartitionJob]
) -> None:
    device = next((d for d in accelerators().devices if d.backend == backend), None)
    if device is None:
        pytest.skip(f"no {backend} device here")
    lower = Counted(lowering_for(device))
    wanted = dataclasses.replace(make(), device=device)
    first, second = lower_kept(wanted, cache, lower), lower_kept(wanted, cache, lower)
    assert lower.calls == 1
    assert same(first, second)
    assert first.requires == second.requires
    smaller = dataclasses.replace(device, target={**device.target, "max_num_threads": 64})
    lower_kept(dataclasses.replace(wanted, device=smaller), cache, lower)
    assert lower.calls == 2
    tuned = dataclasses.replace(device, properties={**device.properties, "tune": "on"})
    lower_kept(dataclasses.replace(wanted, device=tuned), cache, lower)
    assert lower.calls == 3


def test_a_compile_that_finds_everything_kept_does_not_import_tvm(tmp_path: Path) -> None:
    nodes, weights = [node("MatMul", ["x", "w"], ["y"])], {"w": np.ones((20, 40), np.float32)}
    save(tmp_path / "m.onnx", nodes, {"x": X.shape}, {"y": (3, 40)}, weights)
    code = (
        "import sys; from heterocc.compiler import compile_model;"
        "compile_model(sys.argv[1], sys.argv[2], devices='CPU');"
        "print([m for m in ('tvm', 'tvm.s_tir.dlight.gpu') if m in sys.modules])"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "m.onnx"), str(tmp_path / "m.hcb")]
    here = {**os.environ, "HETEROCC_CACHE": str(tmp_path / "cache")}
    found = [subprocess.run(run, capture_output=True, text=True, check=True, env=here).stdout for _ in range(2)]
    assert found == ["['tvm']\n", "[]\n"]
