"""Close choices of the models of CPU kernels: timed once on this machine, and never needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from heterocc.compiler.build import build
from heterocc.compiler.devices.host import host_cpu, is_this_cpu
from heterocc.compiler.lower.backend import Candidate, LoweredPartition, PartitionJob, Run, Tuning
from heterocc.compiler.lower.cpu import measured
from heterocc.compiler.lower.cpu.generate import tiles
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.cpu.measured import fastest
from heterocc.compiler.lower.kernels.choices import close
from heterocc.compiler.lower.tuning.timing import brief
from heterocc.compiler.pipeline.report import CompileReport
from tests.compiler.lower.lowered import CPU, assert_same, execute, job, model, run_ort
from tests.compiler.small import save

RNG = np.random.default_rng(8)
X = RNG.standard_normal((64, 256)).astype(np.float32)
WEIGHT = RNG.standard_normal((256, 256)).astype(np.float32)
NODES = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]


class Memory:
    """Records in a dictionary."""

    def __init__(self) -> None:
        self.known: dict[str, Mapping[str, object]] = {}

    def read(self, key: str) -> Mapping[str, object] | None:
        return self.known.get(key)

    def write(self, key: str, record: Mapping[str, object]) -> None:
        self.known[key] = record


class LastIsFastest:
    """A timer that runs each candidate, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, candidates: Sequence[Candidate], _wait: Run) -> list[float]:
        self.calls += 1
        for candidate in candidates:
            candidate.run()
        return [1.0 / (1 + number) for number, _ in enumerate(candidates)]


def product() -> PartitionJob:
    return job(model(NODES, {"x": X}, ["y"], {"w": WEIGHT}))


def lowered(timer: object, records: Memory | None = None, notes: list[str] | None = None) -> LoweredPartition:
    tell = [].append if notes is None else notes.append
    tuning = Tuning(timer, records, lambda _: None, tell)  # type: ignore[arg-type]
    return CpuLowering().lower(dataclasses.replace(product(), tuning=tuning))


def test_another_form_is_taken_if_it_is_faster_and_computes_the_same() -> None:
    timer, work = LastIsFastest(), product()
    found = lowered(timer)
    assert timer.calls >= 1 and [k.changed for k in found.tuned] == [True]
    assert found.code != CpuLowering().lower(work).code
    assert_same(execute(work, found, {"x": X}), run_ort(work.model, {"x": X}))


def test_a_result_is_kept_and_a_kernel_timed_once() -> None:
    timer, records = LastIsFastest(), Memory()
    first, second = lowered(timer, records), lowered(timer, records)
    assert timer.calls == 2 * len({1, host_cpu().cores})  # what is faster is timed once more
    assert second.code == first.code
    assert [k.remembered for k in second.tuned] == [True]


def test_choices_of_a_wrong_model_are_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    best = tiles._best_tiles(64, 256 // tiles_isa().lanes, tiles_isa())[0]
    monkeypatch.setattr(tiles, "_best_tiles", lambda *_: [(1, 1), best])
    found = lowered(brief)
    (kernel,) = found.tuned
    assert kernel.changed and kernel.after < 0.9 * kernel.before


def tiles_isa() -> tiles.Isa:
    from heterocc.compiler.lower.cpu.generate.isa import isa_of
    from heterocc.compiler.lower.cpu.target import cpu_target

    return isa_of(cpu_target(CPU))


def test_without_a_clear_gain_the_code_is_the_models() -> None:
    found = lowered(lambda candidates, _: [1.0, *[0.98] * (len(candidates) - 1)])
    assert [k.changed for k in found.tuned] == [False]
    assert found.code == CpuLowering().lower(product()).code


def test_a_failure_leaves_the_models_choice_and_is_reported() -> None:
    def failing(*_: object) -> list[float]:
        raise OSError("no clock")

    notes: list[str] = []
    assert lowered(failing, Memory(), notes).code == CpuLowering().lower(product()).code
    assert notes == ["timing failed, and the models' choices stay for 1 kernel: no clock"]


def test_forms_of_equal_code_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_code", lambda _: 0)
    notes: list[str] = []
    timer = LastIsFastest()
    assert not lowered(timer, Memory(), notes).tuned
    assert timer.calls == 0 and notes == []


def test_a_gain_must_show_again() -> None:
    class Once(LastIsFastest):
        def __call__(self, candidates: Sequence[Candidate], wait: Run) -> list[float]:
            times = super().__call__(candidates, wait)
            return times if self.calls <= len({1, host_cpu().cores}) else [1.0] * len(times)

    found = lowered(Once())
    assert [k.changed for k in found.tuned] == [False]


@pytest.mark.parametrize(
    ("times", "taken"),
    [
        ([[1.0, 0.9]], 1),
        ([[1.0, 0.98]], 0),
        ([[1.0, 0.9], [1.0, 1.01]], 0),
        ([[1.0, 0.96], [1.0, 0.96]], 1),
        ([[1.0, 0.8, 0.9], [1.0, 1.1, 0.9]], 2),
    ],
    ids=["faster", "within the noise", "slower on more threads", "on both", "the others' best"],
)
def test_a_form_must_not_be_slower_with_any_number_of_threads(times: list[list[float]], taken: int) -> None:
    assert fastest(times)[0] == taken


def test_options_are_close_to_the_cheapest_in_the_order_of_costs() -> None:
    assert close([(2.0, "a"), (1.0, "b"), (1.04, "c"), (1.0, "d")]) == ["b", "d", "c"]


def test_brief_timing_ends_and_long_runs_are_not_judged() -> None:
    clock = [0.0]

    def costing(seconds: float) -> Candidate:
        def run() -> None:
            clock[0] += seconds

        return Candidate("", run)

    def timed(*seconds: float) -> list[float]:
        clock[0] = 0.0
        return brief([costing(s) for s in seconds], lambda: None, lambda: clock[0])

    assert timed(1e-3, 2e-3) == pytest.approx([1e-3, 2e-3]) and clock[0] < 0.07
    assert timed(0.2, 0.1) == pytest.approx([0.2, 0.2])


def compiled(folder: Path, name: str, **options: object) -> tuple[CompileReport, bytes]:
    path = save(folder / "m.onnx", NODES, {"x": (64, 256)}, {"y": (64, 256)}, {"w": WEIGHT})
    report = compile_model(path, folder / name, devices="CPU", **options)
    return report, (folder / name).read_bytes()


def test_a_compile_times_once_for_a_cache_and_not_if_it_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = LastIsFastest()
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "brief", timer)
    report, first = compiled(tmp_path, "first.hcb")
    calls = timer.calls
    assert calls and report.tuned[0][1].changed == 1
    assert any("is tuned: 1 of 1 kernels" in note for note in report.notes)
    again, second = compiled(tmp_path, "second.hcb")
    assert second == first and again.tuned[0][1].kernels[0].remembered
    plain, without = compiled(tmp_path, "plain.hcb", measure=False)
    _, other = compiled(tmp_path, "other.hcb", properties=["CPU.mcpu=x86-64"])
    assert timer.calls == calls and plain.tuned == () and without != first and other != first
    monkeypatch.setenv("HETEROCC_CACHE", "off")
    assert compiled(tmp_path, "off.hcb")[1] == without and timer.calls == calls


def test_only_code_for_exactly_this_cpu_is_timed() -> None:
    assert is_this_cpu(CPU) and is_this_cpu(dataclasses.replace(CPU, target=host_cpu().target))
    assert not is_this_cpu(dataclasses.replace(CPU, target={"kind": "llvm", "mcpu": "x86-64"}))
    assert not is_this_cpu(dataclasses.replace(CPU, present=False))
