"""Partitions that a thread lowers before they are asked for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from heterocc.artifacts.errors import LoweringError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.build import build
from heterocc.compiler.build.ahead import LoweringAhead
from heterocc.compiler.devices.present import accelerators
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from tests.compiler.small import conv_net


def partition() -> LoweredPartition:
    return LoweredPartition("tvm", b"code", (), (), ())


def test_a_partition_is_done_once_the_end_was_awaited() -> None:
    made = partition()
    with LoweringAhead() as ahead:
        begun = ahead.begin(lambda: made)
        ahead.finish()
        assert begun.done() and begun.result() is made


def test_an_error_is_raised_where_the_partition_is_taken() -> None:
    def lower() -> LoweredPartition:
        raise LoweringError("no code")

    with LoweringAhead() as ahead:
        begun = ahead.begin(lower)
        ahead.finish()
        with pytest.raises(LoweringError, match="no code"):
            begun.result()


@pytest.mark.skipif(not any(d.backend == "opencl" for d in accelerators().devices), reason="no OpenCL device here")
def test_the_cpu_variant_beside_a_gpu_is_lowered_in_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, str] = {}
    plain = build._lowered

    def lowered(job: PartitionJob) -> LoweredPartition:
        threads[job.device.name] = threading.current_thread().name
        return plain(job)

    monkeypatch.setattr(build, "_lowered", lowered)
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    model = conv_net(tmp_path / "net.onnx")
    compile_model(model, tmp_path / "both.hcb", devices="OPENCL,CPU", affinity={"*": "OPENCL"})
    assert threads["CPU"].startswith("heterocc-lowering")
    assert threads["OPENCL"] == threading.current_thread().name
    with open_bundle(tmp_path / "both.hcb") as bundle:
        assert [p.checked for v in bundle.manifest.variants for p in v.partitions] == [True, True]
