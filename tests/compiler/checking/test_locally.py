"""The check of models that amplify rounding until results have nothing in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from heterocc.artifacts.errors import WrongResultError
from heterocc.compiler import compile_model
from heterocc.compiler.checking.check import Checker
from heterocc.compiler.checking.compare import compare
from heterocc.compiler.checking.judge import Judge
from heterocc.compiler.checking.locally import wrong_on_its_own_inputs
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.checking.test_check import PLANT
from tests.compiler.onnx_build import model, node, save, value

LAYERS = 14


def _amplifying(folder: Path) -> Path:
    """Quantised layers of which each makes a difference 25 times as large."""
    nodes: list[onnx.NodeProto] = []
    for number in range(LAYERS):
        read = f"y{number - 1}" if number else "x"
        nodes += [
            node("DynamicQuantizeLinear", read, f"q{number} s{number} z{number}"),
            node("DequantizeLinear", f"q{number} s{number} z{number}", f"d{number}"),
            node("Mul", f"d{number} gain", f"m{number}"),
            node("Round", f"m{number}", f"f{number}"),
            node("Sub", f"m{number} f{number}", f"r{number}"),
            node("Tanh", f"r{number}", f"y{number}", name=f"fraction{number}"),
        ]
    constants = {"gain": np.array(25, np.float32)}
    return save(folder, model(nodes, [value("x", [5, 64])], [value(f"y{LAYERS - 1}")], constants, opset=17))


def test_kernels_that_are_right_on_what_they_read_are_right(tmp_path: Path) -> None:
    report = compile_model(_amplifying(tmp_path), tmp_path / "m.hcb", devices="CPU", recheck=True)
    assert not report.moved and not report.warnings


def test_the_results_of_such_a_model_are_far_from_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checker, "_amplifies", lambda *_: False)
    with pytest.raises(WrongResultError):
        compile_model(_amplifying(tmp_path), tmp_path / "m.hcb", devices="CPU", recheck=True)


@pytest.mark.parametrize("planted", ["fraction3", "fraction13"])
def test_a_kernel_that_is_wrong_on_what_it_reads_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    monkeypatch.setenv(PLANT, planted)
    with pytest.raises(WrongResultError):
        compile_model(_amplifying(tmp_path), tmp_path / "m.hcb", devices="CPU")


def _choosing(folder: Path) -> tuple[Path, Path]:
    """The place of the larger of two exponentials that are equal but for the last bit, in 400 rows; and its input."""
    rows = np.repeat(np.random.default_rng(0).uniform(-3, 3, (400, 1)).astype(np.float32), 2, 1)
    rows[:, 1] = np.nextafter(rows[:, 1], np.float32(10))
    np.savez(folder / "feed.npz", x=rows)
    nodes = [node("Exp", "x", "e", name="power"), node("ArgMax", "e", "y", name="place", axis=1, keepdims=0)]
    ends = [value("x", [400, 2])], [value("y", [400], onnx.TensorProto.INT64)]
    return save(folder, model(nodes, *ends)), folder / "feed.npz"


def test_a_choice_that_rounding_turns_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, feed = _choosing(tmp_path)
    report = compile_model(path, tmp_path / "m.hcb", devices="CPU", inputs=feed, recheck=True)
    assert not report.moved and not report.warnings
    monkeypatch.setattr(Checker, "_amplifies", lambda *_: False)
    with pytest.raises(WrongResultError):
        compile_model(path, tmp_path / "m.hcb", devices="CPU", inputs=feed, recheck=True)


@pytest.mark.parametrize("planted", ["power", "place"])
def test_a_wrong_kernel_before_a_choice_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    monkeypatch.setenv(PLANT, planted)
    path, feed = _choosing(tmp_path)
    with pytest.raises(WrongResultError):
        compile_model(path, tmp_path / "m.hcb", devices="CPU", inputs=feed)


class Ran:
    """A session whose kernels wrote these values."""

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        self._values = values

    def trace_kernels(self, feed: object, look: Callable[[Any], None], partition: str) -> None:
        for name, array in self._values.items():
            look(SimpleNamespace(kernel=SimpleNamespace(outputs=(name,)), outputs=(array,)))


def test_a_recurrent_layer_that_amplifies_within_itself_is_right() -> None:
    """Chaotic dynamics of quantised values: differences of the last bit are large after 45 steps."""
    rng, size = np.random.default_rng(0), 64
    constants = {
        "w": rng.standard_normal((1, size, size)).astype(np.float32) / 8,
        "r": (rng.standard_normal((1, size, size)) / 2).astype(np.float32),
    }
    nodes = [
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("DequantizeLinear", "q s z", "d"),
        node("RNN", "d w r", "h", hidden_size=size),
    ]
    imported = import_model(model(nodes, [value("x", [45, 1, size])], [value("h", [45, 1, 1, size])], constants))
    names = tuple(n.name for n in imported.graph.nodes)
    feed = {"x": rng.standard_normal((45, 1, size)).astype(np.float32)}
    right = Reference(imported, ["d", "h"]).run(feed)
    other = Reference(imported, ["h"], cut={"d": right["d"] * np.float32(1 + 2e-7)}).run(feed)["h"]
    job: Any = SimpleNamespace(name="p0", nodes=names, inputs=("x",))
    judge = Judge(imported, feed, ["h"])
    assert not compare("h", other, right["h"], judge.tolerance("h")).ok
    for wrote, wrong in ((other, False), (np.flip(other, 0).copy(), True), (other[:, :, :, ::-1].copy(), True)):
        session: Any = Ran({"d": right["d"], "h": wrote})
        assert (wrong_on_its_own_inputs(session, job, feed, judge) is not None) == wrong


def _turning(folder: Path, *, selected: bool = False) -> Path:
    """The sine of running sums of some 10,000 turns, whose rounding is a part of a turn; of `selected` rows, if so."""
    nodes = [
        node("MatMul", "rows w" if selected else "x w", "steps", name="product"),
        node("CumSum", "steps axis", "turns", name="sums"),
        node("Sin", "turns", "y", name="wave"),
    ]
    weights = np.abs(np.random.default_rng(0).standard_normal((512, 64))).astype(np.float32)
    constants = {"w": weights * 2000, "axis": np.array(0)}
    inputs = [value("x", [400, 512])]
    if selected:  # their number is known only when they are: the code is a program of several parts
        nodes[:0] = [
            node("NonZero", "flags", "at"),
            node("Squeeze", "at axes", "places"),
            node("Gather", "x places", "rows"),
        ]
        constants["axes"] = np.array([0])
        inputs.append(value("flags", [400]))
    return save(folder, model(nodes, inputs, [value("y", [None, 64])], constants, opset=17))


@pytest.mark.parametrize("selected", [False, True])
def test_the_rounding_of_phases_is_not_taken_for_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, selected: bool
) -> None:
    path = _turning(tmp_path, selected=selected)
    report = compile_model(path, tmp_path / "m.hcb", devices="CPU", recheck=True)
    assert not report.moved and not report.warnings
    monkeypatch.setattr(Checker, "_amplifies", lambda *_: False)
    with pytest.raises(WrongResultError):
        compile_model(path, tmp_path / "m.hcb", devices="CPU", recheck=True)


@pytest.mark.parametrize("planted", ["product", "sums", "wave"])
def test_a_wrong_kernel_among_phases_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    monkeypatch.setenv(PLANT, planted)
    with pytest.raises(WrongResultError):
        compile_model(_turning(tmp_path), tmp_path / "m.hcb", devices="CPU")
