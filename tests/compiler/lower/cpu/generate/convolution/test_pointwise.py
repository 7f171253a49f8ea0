"""Generated 1×1 convolutions with vectors along channels against sums in float64."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.direct import generate_direct
from heterocc.compiler.lower.cpu.generate.convolution.form import find_convolution
from heterocc.compiler.lower.cpu.generate.convolution.pointwise import PointwiseWriter, generate_pointwise
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.read import Kernel
from tests.compiler.lower.cpu.generate.convolution.test_convolution import Case, check
from tests.compiler.lower.cpu.generate.generated import runnable
from tests.few_examples import few

KINDS = "heterocc.compiler.lower.cpu.generate.generate.KINDS"
CPUS = st.sampled_from(runnable())


def always(kernel: Kernel, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]]:
    """The generator without its model."""
    found = find_convolution(kernel)
    assert found is not None
    writer = PointwiseWriter(kernel, found, isa)
    return emit.written(kernel, {found.weight: writer.packing.size}, writer.write), (writer.packing,)


def pointwise(*size: int, inputs: int, outputs: int, groups: int = 1, batch: int = 1) -> Case:
    ones, zeros = (1,) * len(size), (0,) * len(size)
    return Case(batch, groups, inputs, outputs, size, ones, ones, ones, zeros, zeros)


@few(8)
@given(
    cpu=CPUS,
    size=st.one_of(st.tuples(st.integers(2, 70)), st.tuples(st.integers(2, 14), st.integers(2, 14))),
    outputs=st.sampled_from([16, 25, 48, 84, 112]),
    inputs=st.integers(2, 21),
    groups=st.integers(1, 2),
    batch=st.integers(1, 2),
)
def test_every_map_and_number_of_channels(
    cpu: str, size: tuple[int, ...], outputs: int, inputs: int, groups: int, batch: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KINDS, (always,))
        assert check(cpu, pointwise(*size, inputs=inputs, outputs=outputs, groups=groups, batch=batch))


@pytest.mark.parametrize("cpu", runnable())
def test_a_narrow_map_is_generated_along_channels(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KINDS, (generate_pointwise,))
    assert check(cpu, pointwise(7, 7, inputs=320, outputs=64))


@pytest.mark.parametrize("size", [(1, 1), (56, 56), (8, 8)])
def test_a_map_that_fills_vectors_is_not(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KINDS, (generate_pointwise,))
    assert not check(runnable()[-1], pointwise(*size, inputs=64, outputs=64))


@pytest.mark.parametrize(("inputs", "expected"), [(192, True), (16, False)])
def test_groups_of_many_inputs_are_generated_along_channels(
    inputs: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stores of sums that are turned weigh more, the fewer inputs a group has."""
    asked = []

    def generate(kernel: Kernel, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
        asked.append(generate_pointwise(kernel, isa))
        return asked[-1]

    monkeypatch.setattr(KINDS, (generate, generate_direct))
    assert check(runnable()[0], pointwise(128, inputs=inputs, outputs=64, groups=4))
    assert (asked[0] is not None) is expected
