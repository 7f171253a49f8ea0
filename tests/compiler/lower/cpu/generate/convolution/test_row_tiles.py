"""Generated convolutions with vectors along channels, in both forms, against a sum over taps in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heterocc.compiler.lower.cpu.generate.candidates import Candidate, Form
from heterocc.compiler.lower.cpu.generate.convolution.channel_forms import propose_channels
from heterocc.compiler.lower.cpu.generate.convolution.channel_tiles import ChannelTiles
from heterocc.compiler.lower.cpu.generate.convolution.channel_tiling import Schedule
from heterocc.compiler.lower.cpu.generate.convolution.direct import propose_direct
from heterocc.compiler.lower.cpu.generate.convolution.form import Window, find_planes
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import parts_of
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.read import Kernel
from tests.compiler.lower.cpu.generate.convolution.test_convolution import Case, check
from tests.compiler.lower.cpu.generate.generated import AVX512, runnable
from tests.few_examples import few

CPUS = st.sampled_from(runnable())


def only(number: int) -> Form:
    """The candidate of this number of those that a convolution has, around the end."""

    def propose(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
        every = list(propose_channels(kernel, isa))
        yield every[number % len(every)]

    return propose


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
        names.append(candidate.form)
        return candidate.writer(isa)

    return Candidate(candidate.form, candidate.cycles, writer, candidate.detail, candidate.dtype)  # type: ignore[arg-type]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    each = [st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(0, 6), st.integers(0, 6)]
    rank = draw(st.sampled_from([1, 2, 2]))
    kernel, stride, dilation, before, after = (
        tuple(draw(st.lists(values, min_size=rank, max_size=rank))) for values in each
    )
    size = tuple(
        max(draw(st.integers(1, 24)), (k - 1) * d + 1 - b - a)
        for k, d, b, a in zip(kernel, dilation, before, after, strict=True)
    )
    outputs = draw(st.sampled_from([16, 25, 48, 80, 84]))
    groups, inputs = draw(st.sampled_from([1, 1, 2])), draw(st.integers(2, 5))
    return Case(draw(st.integers(1, 2)), groups, inputs, outputs, size, kernel, stride, dilation, before, after)


@few(12)
@given(cpu=CPUS, case=cases(), number=st.integers(0, 99))
def test_all_forms_agree_for_any_attributes(cpu: str, case: Case, number: int) -> None:
    assume(np.prod(case.places) > 1)
    assert check(cpu, case, (only(number),))


@pytest.mark.parametrize("deep", [1, 2])
def test_narrow_maps_are_correct_in_each_form(deep: int) -> None:
    # Rows of 4 pixels with AVX-512, of 3 with AVX2, of which two are a tile.
    width = 12 if AVX512 in runnable() else 8
    case = Case(2, 2, 40, 48, (15, width), (3, 2), (3, 3), (1, 1), (1, 0), (1, 1))

    def propose(kernel: Kernel, _isa: Isa) -> Iterator[Candidate]:
        conv = find_planes(kernel)
        assert conv is not None
        schedule = Schedule("copied rows", "rows", conv.rows.places, deep)
        yield Candidate("copied rows", 1.0, partial(ChannelTiles, kernel, conv, schedule=schedule))

    assert check(runnable()[0], case, (propose,))


def test_all_outputs_of_a_part_have_the_same_taps_inside_the_input() -> None:
    for window in (Window(33, 12, 3, 1, 12, 33), Window(39, 1, 3, 2, 1, 20), Window(4, 9, 3, 1, 2, 12)):
        parts = parts_of(window)
        assert [place for p in parts for place in range(p.start, p.end)] == list(range(window.places))
        for part in parts:
            for place in range(part.start, part.end):
                reads = [place * window.stride + tap * window.dilation - window.before for tap in range(window.taps)]
                assert [0 <= r < window.size for r in reads] == [
                    part.first <= t < part.last for t in range(window.taps)
                ]


def test_more_taps_than_are_unrolled_are_correct_along_channels() -> None:
    case = Case(1, 1, 20, 48, (11,), (15,), (1,), (1,), (7,), (7,))
    number = 1  # copied rows, as the first form reads in place
    assert check(runnable()[0], case, (only(number),))


@pytest.mark.parametrize("cpu", runnable())
def test_a_widely_dilated_kernel_is_read_in_place(cpu: str) -> None:
    """Most taps are in the padding, and take no time."""
    case, names = Case(1, 1, 8, 64, (33, 33), (3, 3), (1, 1), (12, 12), (12, 12), (12, 12)), list[str]()
    assert check(cpu, case, [*map(choosing(names), (propose_channels, propose_direct))]) and names == ["rows in place"]


@pytest.mark.skipif(AVX512 not in runnable(), reason="narrower vectors are filled by these channels")
@pytest.mark.parametrize(("outputs", "along"), [(20, False), (32, True)])
def test_few_channels_of_many_inputs_have_vectors_along_pixels(outputs: int, along: bool) -> None:
    """The inputs of one row are beyond the near cache, which each tile of channels reads again: 20 are few tiles."""
    names: list[str] = []
    forms = [*map(choosing(names), (propose_channels, propose_direct))]
    case = Case(1, 1, 90, outputs, (50, 49), (3, 3), (1, 1), (2, 2), (2, 2), (2, 2))
    assert check(AVX512, case, forms, copy_bytes=0) and (names != ["direct"]) == along
