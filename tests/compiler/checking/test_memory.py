"""Verdicts and vectors of earlier compiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterocc.compiler import compile_model
from heterocc.compiler.checking import check, vectors
from heterocc.compiler.checking.memory import Memory, open_memory
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.checking.vectors import find_vectors
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.pipeline.report import CompileReport
from heterocc.runtime.fault_variables import WRONG_KERNEL
from tests.compiler.small import conv_net


class Counted(Reference):
    """ONNX Runtime, that counts its runs."""

    runs = 0

    def run(self, *arguments: object, **keywords: object) -> dict[str, object]:
        Counted.runs += 1
        return super().run(*arguments, **keywords)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    for module in (check, vectors):
        monkeypatch.setattr(module, "Reference", Counted)


def compiled(folder: Path, **options: object) -> tuple[bytes, CompileReport, int]:
    """The bundle of a small network, the report, and the runs of ONNX Runtime."""
    before = Counted.runs
    report = compile_model(conv_net(folder / "m.onnx"), folder / "m.hcb", devices="CPU", **options)
    return (folder / "m.hcb").read_bytes(), report, Counted.runs - before


def test_a_second_compile_runs_nothing_says_so_and_gives_the_same_bundle(tmp_path: Path) -> None:
    first, report, runs = compiled(tmp_path)
    assert runs and not report.remembered
    second, report, runs = compiled(tmp_path)
    assert not runs and second == first
    assert report.remembered == (("main", "p0"),)
    assert report.to_json()["remembered"] == [{"variant": "main", "partition": "p0"}]
    (line,) = report.remembered_lines()
    assert line.startswith("main: 1 partition found right by an earlier compile")
    third, report, runs = compiled(tmp_path, recheck=True)
    assert runs and not report.remembered and third == first


@pytest.mark.parametrize("other", [{"seed": 1}, {"properties": ["CPU.mcpu=x86-64-v2"]}], ids=["inputs", "code"])
def test_other_inputs_and_other_code_are_checked(tmp_path: Path, other: dict[str, object]) -> None:
    compiled(tmp_path)
    assert not compiled(tmp_path, **other)[1].remembered


def test_a_wrong_kernel_is_neither_remembered_nor_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tmp_path)
    monkeypatch.setenv(WRONG_KERNEL, "gate")
    report = compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU,ORT")
    assert [move.node for move in report.moved] == ["gate"] and not report.remembered


def test_what_is_wrong_is_compared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[object] = []
    monkeypatch.setattr(Memory, "verdict", lambda *_: stored.append(1))
    monkeypatch.setattr(
        check.Checker, "_run", lambda *_: check._Run((check.Difference("y", 1, 1, 0, "differs"),), None, b"")
    )
    monkeypatch.setattr(check.Checker, "_blame", lambda self, job, *_: check.Wrong(()))
    compiled(tmp_path)
    monkeypatch.undo()
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    assert stored and not compiled(tmp_path)[1].remembered


def test_vectors_are_read_as_they_were_found(tmp_path: Path) -> None:
    model = import_model(conv_net(tmp_path / "m.onnx"))
    memory = open_memory(model, None, 3)
    assert memory is not None and memory.vectors() is None
    found = find_vectors(model, None, 3)
    memory.keep_vectors(found)
    again = memory.vectors()
    assert again is not None and (again.blind, again.random) == (found.blind, found.random)
    for one, other in ((found.inputs, again.inputs), (found.outputs, again.outputs)):
        assert list(one) == list(other)
        assert all(np.array_equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)


def test_other_constants_or_a_changed_file_of_inputs_have_no_vectors(tmp_path: Path) -> None:
    model = import_model(conv_net(tmp_path / "m.onnx"))
    given = tmp_path / "x.npz"
    keys = []
    for scale in (1, 2):
        np.savez(given, x=scale * np.ones((1, 4, 8, 8), np.float32))
        memory = open_memory(model, given, 0)
        assert memory is not None
        keys.append(memory.key)
    assert len(set(keys)) == 2
