"""Partitions that a thread lowers before they are asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from heterocc.artifacts.errors import LoweringError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.build import build
from heterocc.compiler.build.ahead import LoweringAhead
from heterocc.compiler.devices.present import accelerators
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob, Timer
from tests.compiler.small import conv_net

Note = Callable[[str], None]


def partition() -> LoweredPartition:
    return LoweredPartition("tvm", b"code", (), (), ())


def times(_candidates: object, _wait: object) -> list[float]:
    return [1.0]


def test_a_partition_comes_with_its_notes() -> None:
    made = partition()

    def lower(_timer: Timer, note: Note) -> LoweredPartition:
        note("a note")
        return made

    with LoweringAhead() as ahead:
        begun = ahead.begin(lower, times)
        assert begun.result.result() is made
    assert begun.notes == ["a note"]


def test_kernels_are_timed_once_it_is_quiet() -> None:
    ready, timed = threading.Event(), threading.Event()

    def lower(timer: Timer, _note: Note) -> LoweredPartition:
        ready.set()
        timer([], lambda: None)
        timed.set()
        return partition()

    with LoweringAhead() as ahead:
        ahead.busy()
        ahead.begin(lower, times)
        assert ready.wait(10)
        assert not timed.wait(0.1)
        ahead.quiet()
        assert timed.wait(10)


@pytest.mark.parametrize("end", ["finish", "exit"])
def test_whoever_waits_for_a_lowering_does_not_wait_for_quiet(end: str) -> None:
    made = partition()

    def lower(timer: Timer, _note: Note) -> LoweredPartition:
        timer([], lambda: None)
        return made

    with LoweringAhead() as ahead:
        ahead.busy()
        begun = ahead.begin(lower, times)
        if end == "finish":
            ahead.finish()
            assert begun.result.done()
    assert begun.result.result() is made


def test_an_error_is_raised_where_the_partition_is_taken() -> None:
    def lower(_timer: Timer, _note: Note) -> LoweredPartition:
        raise LoweringError("no code")

    with LoweringAhead() as ahead:
        begun = ahead.begin(lower, times)
        ahead.finish()
        with pytest.raises(LoweringError, match="no code"):
            begun.result.result()


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
