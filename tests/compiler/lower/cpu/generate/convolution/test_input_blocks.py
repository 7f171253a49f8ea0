"""Generated convolutions in blocks of input channels, in all forms, against a sum over taps in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heterocc.compiler.lower.cpu.generate.candidates import Candidate, Form
from heterocc.compiler.lower.cpu.generate.convolution.channel_forms import propose_channels
from heterocc.compiler.lower.cpu.generate.convolution.channel_tiling import Tiling
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import share_inside
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import runs
from tests.compiler.lower.cpu.generate.convolution.test_convolution import Case, check
from tests.compiler.lower.cpu.generate.generated import AVX2, runnable
from tests.few_examples import few

CPUS = st.sampled_from(runnable())


def propose_blocks(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The form in blocks of input channels, or of 1x1 that has them all in one."""
    for candidate in propose_channels(kernel, isa):
        if candidate.form in ("blocks of inputs", "pixels"):
            yield candidate


def noting(found: list[Tiling]) -> Form:
    """The form, whose writers are added to `found`."""

    def propose(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
        for candidate in propose_blocks(kernel, isa):
            writer = candidate.writer(isa)
            assert isinstance(writer, Tiling)
            found.append(writer)
            yield candidate

    return propose


def pointwise(*size: int, inputs: int, outputs: int, groups: int = 1, batch: int = 1) -> Case:
    ones, zeros = (1,) * len(size), (0,) * len(size)
    return Case(batch, groups, inputs, outputs, size, ones, ones, ones, zeros, zeros)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    each = [st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3)]
    kernel, stride, dilation, before, after = (
        tuple(draw(st.lists(values, min_size=rank, max_size=rank))) for values in each
    )
    if draw(st.booleans()):
        kernel, before, after = (1,) * rank, (0,) * rank, (0,) * rank
    size = tuple(
        max(draw(st.integers(1, 17)), (k - 1) * d + 1 - b - a)
        for k, d, b, a in zip(kernel, dilation, before, after, strict=True)
    )
    outputs, groups = draw(st.sampled_from([16, 25, 48, 84])), draw(st.sampled_from([1, 1, 2]))
    batch, inputs = draw(st.integers(1, 2)), draw(st.integers(2, 24))
    return Case(batch, groups, inputs, outputs, size, kernel, stride, dilation, before, after)


@few(16)
@given(cpu=CPUS, case=cases(), terms=st.integers(1, 12), pixels=st.sampled_from([1, 20, 224]), held=st.integers(1, 200))
def test_blocks_agree_for_any_attributes(cpu: str, case: Case, terms: int, pixels: int, held: int) -> None:
    assume(np.prod(case.places) > 1)
    limits = dict.fromkeys(("near_bytes", "tile_bytes", "weight_bytes"), 1 << 10)
    fields = {"sum_bytes": held << 10, "block_terms": terms, "block_pixels": pixels, **limits}
    assert check(cpu, case, (propose_blocks,), **fields)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(
    "case",
    [
        Case(1, 1, 256, 96, (7, 7), (1, 1), (1, 1), (1, 1), (0, 0), (0, 0)),
        Case(2, 1, 192, 80, (15, 14), (1, 1), (2, 2), (1, 1), (0, 0), (0, 0)),
        Case(1, 2, 96, 48, (33, 29), (3, 3), (2, 2), (1, 1), (1, 1), (1, 0)),
        Case(1, 1, 512, 48, (14, 14), (1, 1), (2, 2), (1, 1), (0, 0), (1, 1)),
    ],
    ids=["in place", "copied pixels", "copied rows", "pixels and zeros after them"],
)
def test_sums_are_continued_from_block_to_block(cpu: str, case: Case) -> None:
    found: list[Tiling] = []
    assert check(cpu, case, (noting(found),))
    in_blocks = [writer.blocks > 1 for writer in found]
    assert all(in_blocks) if cpu == AVX2 or found[0].copied is not None else not any(in_blocks)


@few(12)
@given(
    cpu=CPUS,
    kernel=st.integers(9, 40),
    before=st.integers(0, 45),
    after=st.integers(0, 45),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    size=st.integers(1, 70),
    inputs=st.sampled_from([1, 2, 3, 8, 12]),
)
def test_taps_outside_the_input_are_left_out(
    cpu: str, kernel: int, before: int, after: int, stride: int, dilation: int, size: int, inputs: int
) -> None:
    size = max(size, (kernel - 1) * dilation + 1 - before - after)
    case = Case(1, 2, inputs, 25, (size,), (kernel,), (stride,), (dilation,), (before,), (after,))
    assume(case.places[0] > 1)
    assert check(cpu, case, (noting(found := []),), inside=1.0)
    assert all(writer.leaves_out for writer in found)


@pytest.mark.parametrize("cpu", runnable())
def test_taps_are_left_out_where_many_are_outside(cpu: str) -> None:
    form = noting(found := [])
    wide = Case(1, 2, 6, 48, (100,), (64,), (1,), (1,), (32,), (31,))
    assert check(cpu, wide, (form,))
    assert all(writer.leaves_out for writer in found)
    found.clear()
    assert check(cpu, replace(wide, kernel=(9,), before=(4,), after=(4,)), (form,))
    assert found and not any(writer.leaves_out for writer in found)


@given(
    window=st.builds(
        Window, st.integers(1, 30), st.integers(0, 20), st.integers(1, 15), *[st.integers(1, 3)] * 2, st.integers(1, 30)
    ),
    tall=st.integers(1, 12),
)
def test_the_share_of_taps_inside_is_of_those_not_outside_for_a_whole_tile(window: Window, tall: int) -> None:
    taps = 0
    for run in runs(window.places, tall):
        for start in range(run.start, run.start + run.count * run.size, run.size):
            first, last = (place * window.stride - window.before for place in (start, start + run.size - 1))
            reads = [tap * window.dilation for tap in range(window.taps)]
            taps += run.size * sum(first + read < window.size and last + read >= 0 for read in reads)
    assert share_inside(window, tall) == pytest.approx(taps / (window.places * window.taps))


@few(8)
@given(
    cpu=CPUS,
    size=st.one_of(st.tuples(st.integers(2, 70)), st.tuples(st.integers(2, 14), st.integers(2, 14))),
    outputs=st.sampled_from([16, 25, 48, 84, 112]),
    inputs=st.integers(2, 21),
    groups=st.integers(1, 2),
    batch=st.integers(1, 2),
)
def test_every_map_and_number_of_channels_of_1x1(
    cpu: str, size: tuple[int, ...], outputs: int, inputs: int, groups: int, batch: int
) -> None:
    case = pointwise(*size, inputs=inputs, outputs=outputs, groups=groups, batch=batch)
    assert check(cpu, case, (propose_blocks,))


@pytest.mark.skipif("x86-64-v4" not in runnable(), reason="this CPU lacks AVX-512")
@pytest.mark.parametrize(("size", "rows"), [((14, 14), 4), ((7, 7), 1), ((30, 30), 9)])
def test_pixels_that_are_read_in_place_are_in_as_many_rows_as_threads_need(size: tuple[int, int], rows: int) -> None:
    found: list[Tiling] = []
    assert check("x86-64-v4", pointwise(*size, inputs=300, outputs=48), (noting(found),))
    assert found and all((writer.conv.rows.places, writer.chunks, writer.blocks) == (rows, rows, 1) for writer in found)
