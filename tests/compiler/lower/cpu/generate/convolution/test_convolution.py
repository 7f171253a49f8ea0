"""Generated convolutions against a sum over taps in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from heterocc.compiler.lower.cpu.generate.candidates import Form
from heterocc.compiler.lower.cpu.generate.convolution.direct import propose_direct
from heterocc.compiler.lower.cpu.generate.generate import FORMS
from tests.compiler.lower.cpu.generate.generated import ARM, Generated, assert_near, runnable, target_of, with_core
from tests.few_examples import few

node = helper.make_node
RNG = np.random.default_rng(12)
CPUS = st.sampled_from(runnable())


@dataclass(frozen=True)
class Case:
    """A convolution: per dimension size, kernel, stride, dilation and the padding before and after."""

    batch: int
    groups: int
    inputs: int
    outputs: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """The size of the outputs."""
        each = zip(self.size, self.kernel, self.stride, self.dilation, self.before, self.after, strict=True)
        return tuple((n + b + a - (k - 1) * d - 1) // s + 1 for n, k, s, d, b, a in each)


@st.composite
def cases(draw: st.DrawFn, depthwise: bool = False) -> Case:
    rank = draw(st.sampled_from([1, 2, 2, 2]))
    each = [st.integers(1, 5), st.integers(1, 3), st.integers(1, 2), st.integers(0, 3), st.integers(0, 3)]
    kernel, stride, dilation, before, after = (
        tuple(draw(st.lists(values, min_size=rank, max_size=rank))) for values in each
    )
    widths = st.one_of(st.integers(1, 20), st.sampled_from([28, 33, 56, 70]))
    size = tuple(
        max(draw(widths), (k - 1) * d + 1 - b - a) for k, d, b, a in zip(kernel, dilation, before, after, strict=True)
    )
    batch = draw(st.integers(1, 2))
    if depthwise:
        return Case(
            batch, draw(st.integers(2, 9)), 1, draw(st.integers(1, 2)), size, kernel, stride, dilation, before, after
        )
    groups, inputs = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 2, 3, 5, 8]))
    outputs = draw(st.sampled_from([1, 2, 5, 8, 17, 30]))
    return Case(batch, groups, inputs, outputs, size, kernel, stride, dilation, before, after)


def reference(case: Case, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    rank = len(case.size)
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(case.before, case.after, strict=True)])
    places = case.places
    padded = padded.reshape(case.batch, case.groups, case.inputs, *padded.shape[2:])
    split = w.astype(np.float64).reshape(case.groups, case.outputs, case.inputs, *case.kernel)
    total = np.zeros((case.batch, case.groups, case.outputs, *places))
    for tap in np.ndindex(*case.kernel):
        inside = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, case.dilation, places, case.stride, strict=True)
        )
        weight = split[(slice(None),) * 3 + tap]
        total += np.einsum("bgc...,goc->bgo...", padded[(slice(None),) * 3 + inside], weight)
    assert total.ndim == rank + 3
    return total.reshape(case.batch, case.groups * case.outputs, *places)


def check(cpu: str, case: Case, forms: Sequence[Form] = FORMS, **core: Any) -> bool:
    """Compare a convolution with its reference; False if the forms have none for it.

    `core` are fields in which the core differs from the target's.
    """

    def floats(*shape: int) -> np.ndarray:
        return RNG.standard_normal(shape).astype(np.float32)

    out = case.groups * case.outputs
    x = floats(case.batch, case.groups * case.inputs, *case.size)
    w, b = floats(out, case.inputs, *case.kernel), floats(out)
    right = reference(case, x, w)
    if w.size == 1:
        return False  # a weight of one element becomes a number in the code
    z = floats(*right.shape)
    attributes = {
        "group": case.groups,
        "strides": case.stride,
        "dilations": case.dilation,
        "pads": [*case.before, *case.after],
    }
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], **attributes),
        node("Relu", ["c"], ["r"]),
        node("Add", ["r", "z"], ["y"]),
    ]
    target = target_of(cpu)
    kernel = Generated(nodes, {"x": x, "z": z}, {"w": w, "b": b}, target, with_core(target, **core), forms=forms)
    if kernel.done is None:
        return False
    right = np.maximum(right + b.reshape(-1, *(1 for _ in case.size)), 0) + z
    assert_near(kernel.run(), right, case.inputs * int(np.prod(case.kernel)))
    return True


@given(CPUS, cases())
@few(15, deadline=None)
def test_a_convolution_with_any_attributes_agrees(cpu: str, case: Case) -> None:
    assert check(cpu, case) or case.inputs == 1


@given(CPUS, cases(depthwise=True))
@few(10, deadline=None)
def test_a_depthwise_convolution_with_any_attributes_agrees(cpu: str, case: Case) -> None:
    assert check(cpu, case) or case.inputs == 1


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("width", [5, 7, 10, 13, 14, 20])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (5, 1), (3, 2), (5, 2)])
def test_many_planes_of_narrow_rows_agree(cpu: str, width: int, kernel: int, stride: int) -> None:
    pads = (kernel // 2,) * 2
    check(cpu, Case(2, 67, 1, 1, (9, width), (kernel,) * 2, (stride,) * 2, (1, 1), pads, pads))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("height", "taps", "dilation", "before"), [(17, 7, 1, 3), (17, 5, 2, 1), (31, 9, 1, 0)])
def test_taps_along_a_row_whose_columns_are_copied_agree(
    cpu: str, height: int, taps: int, dilation: int, before: int
) -> None:
    check(cpu, Case(2, 2, 3, 40, (height, 17), (1, taps), (1, 1), (1, dilation), (0, before), (0, 3)))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("width", "taps", "stride", "before"),
    [(61, 3, 3, 1), (127, 7, 4, 3), (150, 10, 5, 0), (197, 9, 8, 0)],
)
def test_columns_by_large_strides_agree(cpu: str, width: int, taps: int, stride: int, before: int) -> None:
    check(cpu, Case(1, 2, 3, 33, (11, width), (3, taps), (3, stride), (1, 1), (1, before), (0, before)))
    check(cpu, Case(2, 1, 2, 34, (width,), (taps,), (stride,), (2,), (before,), (before,)))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation", "before"),
    [
        pytest.param((70, 98), (14, 14), (14, 14), (1, 1), (0, 0), id="patches"),
        pytest.param((41, 95), (9, 11), (9, 9), (1, 1), (4, 5), id="some phases begin in the padding"),
        pytest.param((33, 120), (7, 5), (7, 12), (1, 2), (2, 3), id="every other phase"),
        pytest.param((40, 61), (6, 9), (6, 10), (5, 3), (0, 9), id="phases at no equal distances"),
        pytest.param((223,), (13,), (11,), (1,), (6,), id="one dimension"),
    ],
)
def test_many_phases_agree(
    cpu: str,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    before: tuple[int, ...],
) -> None:
    for inputs, outputs in ((3, 33), (1, 6)):
        check(cpu, Case(1, 2, inputs, outputs, size, kernel, stride, dilation, before, before))


def test_the_code_for_many_phases_is_a_loop() -> None:
    # It had 106 lines for the 49 phases of this convolution. For 196 they took LLVM six seconds.
    x, w = np.zeros((1, 3, 112, 112), np.float32), np.zeros((384, 3, 7, 7), np.float32)
    nodes, forms = [node("Conv", ["x", "w"], ["y"], strides=[7, 7])], (propose_direct,)
    kernel = Generated(nodes, {"x": x}, {"w": w}, target_of("x86-64-v4"), forms=forms)
    assert kernel.done is not None
    assert len(kernel.done[0].script().splitlines()) < 80


def test_rows_of_whole_vectors_are_stored_from_registers() -> None:
    memory = []
    for width in (64, 65):
        x, w = np.zeros((1, 3, 32, width), np.float32), np.zeros((16, 3, 3, 3), np.float32)
        nodes, forms = [node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], (propose_direct,)
        kernel = Generated(nodes, {"x": x}, {"w": w}, target_of("x86-64-v4"), forms=forms)
        assert kernel.done is not None
        memory.append(kernel.done[0].script().count("alloc_buffer((T.int64("))
    assert memory == [1, 2]  # a copy of rows, and a line of sums


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("places", [8, 16])
def test_rows_of_one_vector_agree(cpu: str, places: int) -> None:
    for rows in (1, 7):
        check(cpu, Case(1, 2, 3, 33, (3 * rows, 4 * places), (3, 4), (3, 4), (1, 1), (0, 0), (0, 0)))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("taps", "dilation"), [(17, 3), (40, 1)])
def test_many_taps_along_a_row_agree(cpu: str, taps: int, dilation: int) -> None:
    half = taps * dilation // 2
    check(cpu, Case(1, 3, 5, 19, (90,), (taps,), (1,), (dilation,), (half,), (half - 1,)))
    check(cpu, Case(1, 1, 2, 21, (5, 150), (2, taps), (1, 1), (1, dilation), (1, half), (0, 7)))


@pytest.mark.parametrize("cpu", runnable())
def test_work_that_threads_share_agrees(cpu: str) -> None:
    check(cpu, Case(2, 1, 24, 40, (23, 29), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)))
    check(cpu, Case(1, 1, 3, 24, (65, 66), (7, 7), (2, 2), (1, 1), (3, 3), (3, 2)))


def test_code_for_arm_compiles() -> None:
    x, w = np.zeros((1, 5, 9, 30), np.float32), np.zeros((6, 5, 3, 3), np.float32)
    kernel = Generated([node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], {"x": x}, {"w": w}, ARM)
    assert "fmla" in kernel.code().mod.inspect_source("asm")
