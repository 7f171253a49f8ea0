"""Generated convolutions with vectors along channels against a sum over taps in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heterocc.compiler.lower.cpu.generate.candidates import Candidate, Form
from heterocc.compiler.lower.cpu.generate.convolution.channel_tiles import ChannelTiles, propose_channels
from heterocc.compiler.lower.cpu.generate.convolution.direct import propose_direct
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.read import Kernel
from tests.compiler.lower.cpu.generate.convolution.test_convolution import Case, check
from tests.compiler.lower.cpu.generate.generated import AVX512, runnable
from tests.few_examples import few

CPUS = st.sampled_from(runnable())


def choosing(names: list[str]) -> Callable[[Form], Form]:
    """Makes a form that proposes the same, and notes the names of forms whose writers are made to be written."""

    def noting(form: Form) -> Form:
        def propose(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
            for candidate in form(kernel, isa):
                yield noted(candidate, names)

        return propose

    return noting


def noted(candidate: Candidate, names: list[str]) -> Candidate:
    """The candidate, whose name is noted when its writer is made."""

    def writer(isa: Isa) -> object:
        names.append(str(candidate))
        return candidate.writer(isa)

    return replace(candidate, writer=writer)  # type: ignore[arg-type]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    each = [st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(0, 6), st.integers(0, 6)]
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    kernel, stride, dilation, before, after = (
        tuple(draw(st.lists(values, min_size=rank, max_size=rank))) for values in each
    )
    if draw(st.booleans()):
        before, after = (0,) * rank, (0,) * rank
    size = tuple(
        max(draw(st.integers(1, 24 if rank < 3 else 7)), (k - 1) * d + 1 - b - a)
        for k, d, b, a in zip(kernel, dilation, before, after, strict=True)
    )
    outputs = draw(st.sampled_from([16, 25, 48, 80, 84]))
    groups, inputs = draw(st.sampled_from([1, 1, 2])), draw(st.integers(2, 5))
    return Case(draw(st.integers(1, 2)), groups, inputs, outputs, size, kernel, stride, dilation, before, after)


@few(16)
@given(cpu=CPUS, case=cases(), inputs=st.sampled_from([0, 24, 120]), block_bytes=st.sampled_from([0, 1 << 10, 1 << 14]))
def test_a_convolution_along_channels_agrees_for_any_attributes(
    cpu: str, case: Case, inputs: int, block_bytes: int
) -> None:
    assume(np.prod(case.places) > 1)
    case = replace(case, inputs=inputs or case.inputs)
    assert check(cpu, case, (propose_channels,), block_bytes=block_bytes)


@few(8)
@given(
    cpu=CPUS,
    size=st.one_of(st.tuples(st.integers(2, 250)), st.tuples(st.integers(2, 18), st.integers(2, 18))),
    outputs=st.sampled_from([16, 25, 48, 84, 112]),
    inputs=st.integers(2, 21),
    groups=st.integers(1, 2),
    stride=st.integers(1, 2),
)
def test_1x1_along_channels_agrees_for_any_map(
    cpu: str, size: tuple[int, ...], outputs: int, inputs: int, groups: int, stride: int
) -> None:
    rank = len(size)
    ones, zeros = (1,) * rank, (0,) * rank
    case = Case(2, groups, inputs, outputs, size, ones, (stride,) * rank, ones, zeros, zeros)
    assume(np.prod(case.places) > 1)
    assert check(cpu, case, (propose_channels,))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(2, 2, 40, 48, (15, 12), (3, 2), (3, 3), (1, 1), (1, 0), (1, 1)), id="narrow rows"),
        pytest.param(Case(1, 1, 20, 48, (11,), (15,), (1,), (1,), (7,), (7,)), id="many taps"),
        pytest.param(Case(2, 1, 192, 80, (15, 14), (1, 1), (2, 2), (1, 1), (0, 0), (0, 0)), id="1x1 by strides"),
        pytest.param(Case(1, 2, 96, 48, (33, 29), (3, 3), (2, 2), (1, 1), (1, 1), (1, 0)), id="several threads"),
        pytest.param(Case(1, 1, 512, 300, (14, 14), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)), id="far weights"),
        pytest.param(Case(1, 1, 96, 48, (14, 14), (1, 1), (2, 2), (1, 1), (0, 0), (1, 1)), id="zeros after pixels"),
        pytest.param(Case(1, 1, 64, 64, (33, 33), (3, 3), (1, 1), (12, 12), (12, 12), (12, 12)), id="wide dilation"),
    ],
)
def test_such_convolutions_agree_along_channels(cpu: str, case: Case) -> None:
    assert check(cpu, case, (propose_channels,))


def making(writers: list[ChannelTiles]) -> Form:
    """The form, whose writers are added to a list."""

    def propose(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
        for candidate in propose_channels(kernel, isa):
            writers.append(candidate.writer(isa))  # type: ignore[arg-type]
            yield candidate

    return propose


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("taps", [1, 3])
def test_sums_of_many_inputs_are_kept_between_blocks_of_them(cpu: str, taps: int) -> None:
    """The weights of a tile do not stay in a first-level cache, on cores for which that matters."""
    case = Case(1, 1, 512, 48, (7, 7), (taps, taps), (1, 1), (1, 1), (taps // 2,) * 2, (taps // 2,) * 2)
    for block_bytes in (0, 20 << 10):
        assert check(cpu, case, (making(writers := []),), block_bytes=block_bytes)
        assert [writer.blocks > 1 for writer in writers] == [block_bytes > 0]


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("dilation", [1, 12])
def test_taps_that_no_pixel_of_a_tile_has_inside_the_input_are_left_out(cpu: str, dilation: int) -> None:
    case = Case(1, 1, 64, 64, (33, 33), (3, 3), (1, 1), (dilation,) * 2, (dilation,) * 2, (dilation,) * 2)
    assert check(cpu, case, (making(writers := []),))
    assert [writer.leaves_out for writer in writers] == [dilation == 12]


@pytest.mark.parametrize("cpu", runnable())
def test_inputs_without_padding_are_read_where_they_are(cpu: str) -> None:
    plain, names = Case(1, 1, 64, 64, (15, 15), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)), list[str]()
    for case in (plain, replace(plain, kernel=(3, 3)), replace(plain, before=(1, 1))):
        assert check(cpu, case, [choosing(names)(propose_channels)])
    assert names == ["channels in place", "channels in place", "channels of copies"]


@pytest.mark.skipif(AVX512 not in runnable(), reason="narrower vectors are filled by these channels")
@pytest.mark.parametrize(("outputs", "along"), [(20, False), (32, True)])
def test_few_channels_of_many_inputs_have_vectors_along_pixels(outputs: int, along: bool) -> None:
    """The inputs of one row are beyond the near cache, which each tile of channels reads again: 20 are few tiles."""
    names: list[str] = []
    forms = [*map(choosing(names), (propose_channels, propose_direct))]
    case = Case(1, 1, 90, outputs, (50, 49), (3, 3), (1, 1), (2, 2), (2, 2), (2, 2))
    assert check(AVX512, case, forms, copy_bytes=0) and (names != ["direct"]) == along
