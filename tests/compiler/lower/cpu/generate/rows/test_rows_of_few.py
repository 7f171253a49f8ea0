"""Generated kernels of rows along a short last dimension against numpy in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from heterocc.compiler.lower.cpu.generate import generate
from heterocc.compiler.lower.cpu.generate.places import Axis
from heterocc.compiler.lower.cpu.generate.rows import rows
from heterocc.compiler.lower.cpu.generate.rows.neighbours import beside_axis
from heterocc.compiler.lower.cpu.generate.rows.stages import Rows
from heterocc.runtime import load
from tests.compiler.lower.cpu.generate.generated import AVX512, NEON, Generated, runnable, target_of
from tests.symbolic_models import dynamic_model

node = helper.make_node
RNG = np.random.default_rng(3)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the elements of each kernel's rows were read together, where no kernel is one of windows."""
    found: list[bool] = []

    def noted(kernel: Rows, lanes: int) -> Axis | None:
        axis = beside_axis(kernel, lanes)
        found.append(axis is not None)
        return axis

    monkeypatch.setattr(rows, "beside_axis", noted)
    monkeypatch.setattr(generate, "generate_pooling", lambda *_: None)
    return found


@pytest.mark.parametrize("cpu", [*runnable(), NEON])
@pytest.mark.parametrize(
    ("shape", "kind"), [((3, 50, 2), "ReduceSumSquare"), ((70, 3), "ReduceMax"), ((2, 16, 4), "ReduceMean")]
)
def test_terms_that_lie_beside_each_other_agree(
    cpu: str, shape: tuple[int, ...], kind: str, written: list[bool]
) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    kernel = Generated([node(kind, ["x", "a"], ["y"], keepdims=0)], {"x": x}, {"a": np.array([-1])}, target_of(cpu))
    wide = x.astype(np.float64)
    right = {
        "ReduceSumSquare": (wide * wide).sum(-1),
        "ReduceMax": wide.max(-1),
        "ReduceMean": wide.mean(-1),
    }[kind]
    np.testing.assert_allclose(kernel.run(), right, rtol=1e-6, atol=1e-6)
    assert written == [True]


def test_a_value_for_each_output_is_read_beside_the_terms(written: list[bool]) -> None:
    x, s = RNG.standard_normal((37, 2)).astype(np.float32), RNG.standard_normal((37, 1)).astype(np.float32)
    nodes = [node("Mul", ["x", "s"], ["m"]), node("ReduceSum", ["m", "a"], ["r"]), node("Exp", ["r"], ["y"])]
    kernel = Generated(nodes, {"x": x, "s": s}, {"a": np.array([1])}, target_of(runnable()[0]))
    right = np.exp((x.astype(np.float64) * s).sum(1, keepdims=True))
    np.testing.assert_allclose(kernel.run(), right, rtol=1e-5)
    assert written == [True]


@pytest.mark.parametrize("shape", [(40, 5), (5, 2), (40, 2, 3)])
def test_longer_rows_and_few_outputs_are_left_to_others(shape: tuple[int, ...], written: list[bool]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    axes = {"a": np.arange(1, len(shape))}
    Generated([node("ReduceSum", ["x", "a"], ["y"])], {"x": x}, axes, target_of(AVX512))
    assert written == [False]


def test_rows_of_any_number_are_reduced(tmp_path: Path) -> None:
    model = dynamic_model(
        [node("ReduceSumSquare", ["x", "a"], ["y"], keepdims=0)],
        {"x": ("float32", ("b", "n", 21, 2))},
        ["y"],
        {"a": np.array([-1])},
    )
    model.opset_import[0].version = 18
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        for outer in [(1, 1), (2, 3), (1, 40), (3, 1)]:
            x = RNG.standard_normal((*outer, 21, 2)).astype(np.float32)
            right = (x.astype(np.float64) ** 2).sum(-1)
            np.testing.assert_allclose(session.run({"x": x})["y"], right, rtol=1e-6)
