"""The check of models that amplify rounding until results have nothing in common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from heterocc.artifacts.errors import WrongResultError
from heterocc.compiler.checking.check import Checker
from heterocc.compiler.driver import compile_model
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
