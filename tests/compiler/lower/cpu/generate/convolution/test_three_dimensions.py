"""Generated convolutions of three dimensions, read as those of two for each plane, against sums in float64."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterocc.compiler.lower.cpu.generate.convolution.direct import propose_direct
from heterocc.compiler.lower.cpu.generate.convolution.filtering.winograd import propose_winograd
from tests.compiler.lower.cpu.generate.convolution.test_channels import choosing
from tests.compiler.lower.cpu.generate.convolution.test_convolution import Case, check
from tests.compiler.lower.cpu.generate.generated import runnable
from tests.few_examples import few

CPUS = st.sampled_from(runnable())


@st.composite
def cases(draw: st.DrawFn, kernels: st.SearchStrategy[int], strides: st.SearchStrategy[int]) -> Case:
    each = [kernels, strides, st.integers(1, 2), st.integers(0, 2), st.integers(0, 2)]
    kernel, stride, dilation, before, after = (tuple(draw(st.lists(values, min_size=3, max_size=3))) for values in each)
    size = tuple(
        max(draw(st.integers(1, 9)), (k - 1) * d + 1 - b - a)
        for k, d, b, a in zip(kernel, dilation, before, after, strict=True)
    )
    groups, inputs = draw(st.sampled_from([1, 1, 2])), draw(st.integers(2, 5))
    outputs = draw(st.sampled_from([1, 5, 16, 24]))
    return Case(draw(st.integers(1, 2)), groups, inputs, outputs, size, kernel, stride, dilation, before, after)


@given(CPUS, cases(st.integers(1, 3), st.integers(1, 2)))
@few(8, deadline=None)
def test_any_attributes_agree(cpu: str, case: Case) -> None:
    assert check(cpu, case)


@given(CPUS, cases(st.integers(1, 3), st.integers(1, 3)))
@few(4, deadline=None)
def test_vectors_along_pixels_agree(cpu: str, case: Case) -> None:
    assert check(cpu, case, (propose_direct,))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    ("depth", "stride", "before", "after"), [(3, 1, 1, 1), (1, 1, 0, 0), (2, 2, 0, 1), (3, 3, 2, 2)]
)
def test_filtered_planes_agree(cpu: str, depth: int, stride: int, before: int, after: int) -> None:
    ones, pads = (1, 1, 1), ((before, 1, 1), (after, 1, 1))
    case = Case(2, 1, 6, 20, (5, 8, 11), (depth, 3, 3), (stride, 1, 1), ones, *pads)
    assert check(cpu, case, (propose_winograd,))


def test_filtering_is_chosen_by_its_model() -> None:
    """As for images: 3x3 taps of a plane, with stride 1."""
    names: list[str] = []
    forms = [*map(choosing(names), (propose_winograd, propose_direct))]
    threes, ones = (3, 3, 3), (1, 1, 1)
    assert check(runnable()[0], Case(1, 1, 16, 32, (3, 14, 14), threes, ones, ones, ones, ones), forms)
    assert check(runnable()[0], Case(1, 1, 16, 32, (3, 14, 14), threes, (1, 2, 2), ones, ones, ones), forms)
    assert names == ["filtering of 2x2", "direct"]
