"""Generated convolutions with vectors along channels, in both forms, against a sum over taps in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution import along_channels, copied_rows
from heterocc.compiler.lower.cpu.generate.convolution.along_channels import generate_along_channels
from heterocc.compiler.lower.cpu.generate.convolution.form import Window, find_convolution
from heterocc.compiler.lower.cpu.generate.convolution.input_blocks import InputBlocks
from heterocc.compiler.lower.cpu.generate.convolution.row_tiles import CopiedWriter, InPlaceWriter, writers
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import parts_of
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.read import Kernel
from tests.compiler.lower.cpu.generate.convolution.test_convolution import Case, check
from tests.compiler.lower.cpu.generate.generated import AVX512, runnable
from tests.few_examples import few

KINDS = "heterocc.compiler.lower.cpu.generate.generate.KINDS"
CPUS = st.sampled_from(runnable())
Form = InPlaceWriter | CopiedWriter
Done = tuple[tirx.PrimFunc, tuple[Panels, ...]] | None


def only(number: int) -> Callable[[Kernel, Isa], Done]:
    """A generator that writes every convolution whose channels fill a vector in one of all forms."""

    def generate(kernel: Kernel, isa: Isa) -> Done:
        found = find_convolution(kernel)
        assert found is not None and found.outputs >= isa.lanes
        every = list(writers(kernel, found, isa))
        return written(every[number % len(every)])

    return generate


def written(writer: Form) -> Done:
    """The code of a form."""
    return emit.written(writer.kernel, {writer.found.weight: writer.packing.size}, writer.write), (writer.packing,)


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KINDS, (only(number),))
        assert check(cpu, case)


@pytest.mark.parametrize("taps_inside", [False, True])
@pytest.mark.parametrize("form", [(False, 1), (True, 1), (True, 2)])
def test_narrow_maps_are_correct_in_each_form(
    form: tuple[bool, int], taps_inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows of 4 pixels with AVX-512, of 3 with AVX2, of which two are a tile.
    width = 12 if AVX512 in runnable() else 8
    case = Case(2, 2, 40, 48, (15, width), (3, 2), (3, 3), (1, 1), (1, 0), (1, 1))
    found: list[Form] = []

    def generate(kernel: Kernel, isa: Isa) -> Done:
        read = find_convolution(kernel)
        assert read is not None
        found.extend(
            w
            for w in writers(kernel, read, isa)
            if (w.together, w.deep, w.taps_inside) == (*form, taps_inside) and isinstance(w, CopiedWriter)
        )
        return written(found[0])

    monkeypatch.setattr(KINDS, (generate,))
    assert check(runnable()[0], case) and found


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


def test_more_taps_than_are_unrolled_are_correct_along_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(1, 1, 20, 48, (11,), (15,), (1,), (1,), (7,), (7,))
    number = 1  # copied rows, as the first form reads in place
    monkeypatch.setattr(KINDS, (only(number),))
    assert check(runnable()[0], case)


@pytest.mark.parametrize("cpu", runnable())
def test_a_widely_dilated_kernel_is_generated_along_channels(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(1, 1, 8, 64, (33, 33), (3, 3), (1, 1), (12, 12), (12, 12), (12, 12))
    monkeypatch.setattr(KINDS, (generate_along_channels,))
    assert check(cpu, case)


@pytest.mark.skipif(AVX512 not in runnable(), reason="with 16 registers blocks_pay.py compares all forms")
@pytest.mark.parametrize(("taps", "size"), [(1, 14), (3, 14), (3, 43)])
def test_blocks_of_inputs_are_timed_where_weights_are_far_and_agree(
    taps: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A strided convolution; blocks are picked wherever they are an option: of a larger map, if rows are long."""
    offered: list[bool] = []

    def pick(name: str, options: Sequence[object]) -> object:
        if "vectors along channels" not in name:
            return options[0]
        blocks = [option for option in options if isinstance(option, InputBlocks)]
        offered.append(bool(blocks))
        return blocks[0] if blocks else options[0]

    pad = taps // 2
    case = Case(1, 1, 32, 64, (size, size), (taps, taps), (2, 2), (1, 1), (pad, pad), (pad, pad))
    monkeypatch.setattr(KINDS, (lambda kernel, isa: generate_along_channels(kernel, replace(isa, choose=pick)),))
    monkeypatch.setattr(along_channels, "BLOCKS_GAIN", 10.0)
    if size > 14:
        monkeypatch.setattr(along_channels, "FAR_NUMBERS", 0)
    check(AVX512, case)  # another form, or none of vectors along channels
    monkeypatch.setattr(along_channels, "FAR_NUMBERS", 0)
    monkeypatch.setattr(along_channels, "COPY_BYTES", 0)
    assert check(AVX512, case)
    assert offered == [False, True]


@pytest.mark.skipif(AVX512 not in runnable(), reason="the schedule is modelled for 32 registers")
@pytest.mark.parametrize("taps", [1, 3])
def test_other_forms_are_timed_beside_the_schedule_and_agree(taps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strided convolution of a narrow map: the model's choice is the schedule, and each other option is correct."""
    offered: list[int] = []
    picked = 0

    def pick(name: str, options: Sequence[object]) -> object:
        if name != "the schedule or vectors along channels":
            return options[0]
        assert options[0] is None
        offered.append(len(options))
        return options[picked]

    pad = taps // 2
    case = Case(1, 1, 48, 64, (28, 28), (taps, taps), (2, 2), (1, 1), (pad, pad), (pad, pad))
    monkeypatch.setattr(along_channels, "PAYS", 0.5)
    monkeypatch.setattr(along_channels, "SCHEDULED_GAIN", 10.0)
    monkeypatch.setattr(KINDS, (lambda kernel, isa: generate_along_channels(kernel, replace(isa, choose=pick)),))
    assert not check(AVX512, case)
    for option in range(1, offered[0]):
        picked = option
        assert check(AVX512, case)
    assert offered[0] == 1 + along_channels.MOST_BESIDE_SCHEDULE


@pytest.mark.skipif(AVX512 not in runnable(), reason="narrower vectors are filled by these channels")
@pytest.mark.parametrize(("outputs", "along"), [(20, False), (32, True)])
def test_few_channels_of_many_inputs_have_vectors_along_pixels(
    outputs: int, along: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inputs of one row are beyond the near cache, which each tile of channels reads again: 20 are few tiles."""
    monkeypatch.setattr(copied_rows, "COPY_BYTES", 0)
    monkeypatch.setattr(KINDS, (generate_along_channels,))
    case = Case(1, 1, 90, outputs, (50, 49), (3, 3), (1, 1), (2, 2), (2, 2), (2, 2))
    assert check(AVX512, case) == along
