"""Rows beside each other that are too few to fill a vector, against numpy in float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from heterocc.compiler.lower.cpu.generate.rows import folded, rows
from tests.compiler.lower.cpu.generate.generated import ARM, Generated, runnable, target_of
from tests.compiler.lower.cpu.generate.rows.test_rows import KINDS, softmax
from tests.few_examples import few

node = helper.make_node
RNG = np.random.default_rng(31)
CPUS = st.sampled_from(runnable())


@pytest.fixture(scope="module", autouse=True)
def written() -> Iterator[list[folded.Folded]]:
    """The generators that were used."""
    found: list[folded.Folded] = []

    class Noted(folded.Folded):
        def write(self, arguments: object) -> None:
            found.append(self)
            super().write(arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "Folded", Noted)
        yield found


@given(
    cpu=CPUS,
    kind=st.sampled_from(sorted(KINDS)),
    outer=st.integers(1, 3),
    length=st.integers(2, 40),
    count=st.integers(60, 500),
)
@few(12, deadline=None)
def test_softmax_of_few_rows_beside_each_other_agrees(
    cpu: str, kind: str, outer: int, length: int, count: int, written: list[folded.Folded]
) -> None:
    """`length` is the number of rows, `count` that of their elements."""
    x = (4 * RNG.standard_normal((outer, count, length))).astype(np.float32)
    before = len(written)
    kernel = Generated([node(kind, ["x"], ["y"], axis=1)], {"x": x}, {}, target_of(cpu))
    if kernel.done is None:
        assert length < 4 and count < 4 * 4 * 16
        return
    lanes = 16 if cpu == "x86-64-v4" else 8
    if length in (2, 3, 5, 6, 7, 9) and count >= 4 * 4 * lanes:  # four times the most elements in accumulators
        assert len(written) > before
    np.testing.assert_allclose(kernel.run(), KINDS[kind](x, 1), rtol=3e-6, atol=3e-6 if kind == "LogSoftmax" else 1e-7)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("length", "count"), [(2, 333), (5, 321), (6, 1000), (12, 100)])
def test_vectors_go_over_several_elements_of_all_rows(
    cpu: str, length: int, count: int, written: list[folded.Folded]
) -> None:
    before = len(written)
    x = RNG.standard_normal((2, count, length)).astype(np.float32)
    mask = np.where(RNG.random(x.shape) < 0.3, -np.inf, 0).astype(np.float32)
    if length < 4:  # what stands before is another kernel
        nodes, feed = [node("Softmax", ["x"], ["y"], axis=1)], {"x": x}
        right = softmax(x, 1)
    else:
        nodes, feed = [node("Add", ["x", "m"], ["b"]), node("Softmax", ["b"], ["c"], axis=1)], {"x": x, "m": mask}
        nodes.append(node("Mul", ["c", "c"], ["y"]))
        right = softmax(x.astype(np.float64) + mask, 1) ** 2
    kernel = Generated(nodes, feed, {}, target_of(cpu))
    np.testing.assert_allclose(kernel.run(), right, rtol=4e-6, atol=1e-10)
    assert len(written) > before


def test_minus_infinity_and_nan_stay_in_their_rows(written: list[folded.Folded]) -> None:
    before = len(written)
    x = RNG.standard_normal((403, 5)).astype(np.float32)
    x[:, 1], x[30, 2], x[402, 3], x[3:, 4] = -np.inf, np.nan, np.nan, -np.inf
    found = Generated([node("Softmax", ["x"], ["y"], axis=0)], {"x": x}, {}, target_of(runnable()[0])).run()
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, softmax(x, 0), rtol=3e-6, atol=1e-7)
    assert len(written) > before


def test_a_bias_for_each_row_is_left_to_vectors_across_rows(written: list[folded.Folded]) -> None:
    before = len(written)
    x, b = RNG.standard_normal((403, 5)).astype(np.float32), RNG.standard_normal(5).astype(np.float32)
    nodes = [node("Add", ["x", "b"], ["a"]), node("Softmax", ["a"], ["y"], axis=0)]
    found = Generated(nodes, {"x": x, "b": b}, {}, target_of(runnable()[0])).run()
    np.testing.assert_allclose(found, softmax(x + b, 0), rtol=3e-6, atol=1e-7)
    assert len(written) == before


def test_code_for_arm_is_built() -> None:
    x = RNG.standard_normal((403, 5)).astype(np.float32)
    assert Generated([node("Softmax", ["x"], ["y"], axis=0)], {"x": x}, {}, ARM).code() is not None
