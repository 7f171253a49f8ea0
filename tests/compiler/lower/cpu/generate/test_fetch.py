"""Prefetches of weights, inputs and outputs: which lines they fetch, and that kernels with them compute the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper
from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution import direct
from heterocc.compiler.lower.cpu.generate.convolution.channel_tiles import propose_channels
from heterocc.compiler.lower.cpu.generate.convolution.depthwise import propose_planes
from heterocc.compiler.lower.cpu.generate.emit import UNROLL
from heterocc.compiler.lower.cpu.generate.fetch import LINE, fetching_shares, lines_after
from heterocc.compiler.lower.cpu.generate.places import index
from tests.compiler.lower.cpu.generate.convolution.test_convolution import Case, check
from tests.compiler.lower.cpu.generate.generated import (
    Generated,
    assert_near,
    runnable,
    target_of,
    with_core,
)


def pointwise(*size: int, inputs: int, outputs: int, groups: int = 1) -> Case:
    """A 1x1 convolution."""
    ones, zeros = (1,) * len(size), (0,) * len(size)
    return Case(1, groups, inputs, outputs, size, ones, ones, ones, zeros, zeros)


@pytest.mark.parametrize(("count", "terms", "width"), [(1, 8, 48), (16, 768, 48), (7, 37, 16), (3, 5, 64), (40, 9, 8)])
def test_sums_that_share_weights_fetch_all_of_the_next_ones(
    count: int, terms: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[int] = []
    monkeypatch.setattr(emit, "prefetch", lambda _, place: fetched.append(int(place)))
    weights, size = tirx.decl_buffer((1,), "float32"), terms * width
    for number in range(count):
        after, part = lines_after(weights, index(1000), size), emit.Part(index(number), count)
        step = fetching_shares(lambda *_: None, terms, *after, sum_=part)
        for term in range(terms):
            step(index(term), term % UNROLL if term < terms - terms % UNROLL else term)
    lines = {(place - 1000 - size) // LINE for place in fetched}
    assert lines >= set(range(-(-size // LINE)))
    assert min(fetched) == 1000 + size
    turns, total = count * (terms // UNROLL), -(-size // LINE)
    assert max(lines) < total + (turns if turns < total else 0), "weights that are not the next ones"
    assert len(fetched) <= 2 * (-(-size // LINE) + count * terms)


@pytest.mark.parametrize("cpu", runnable())
def test_products_that_prefetch_weights_agree(cpu: str) -> None:
    random = np.random.default_rng(3)
    x, w = random.standard_normal((37, 50)).astype("f"), random.standard_normal((50, 90)).astype("f")
    nodes, feed, weights = [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": x}, {"w": w}
    target = target_of(cpu)
    kernel = Generated(nodes, feed, weights, target, with_core(target, fetched_weights=0))
    assert kernel.done is not None
    assert "prefetch" in kernel.done[0].script()
    assert_near(kernel.run(), x.astype(np.float64) @ w, 50)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("inputs", "block_bytes"), [(21, 0), (192, 1 << 14)], ids=["one block", "blocks"])
def test_tiles_along_channels_that_prefetch_weights_agree(cpu: str, inputs: int, block_bytes: int) -> None:
    case = pointwise(5, 7, inputs=inputs, outputs=48, groups=2)
    assert check(cpu, case, (propose_channels,), fetched_weights=0, block_bytes=block_bytes)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("places", [(9, 32), (9, 37)], ids=["whole rows", "lines"])
def test_convolutions_prefetch_large_outputs_and_agree(
    cpu: str, places: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of whole vectors are stored from registers, others through a buffer of lines."""
    case = Case(1, 1, 5, 40, places, (5, 5), (1, 1), (1, 1), (2, 2), (2, 2))
    written: list[bool] = []
    prefetch = emit.prefetch
    monkeypatch.setattr(
        emit, "prefetch", lambda *given, **how: written.append("to_write" in how) or prefetch(*given, **how)
    )
    forms = (direct.propose_direct,)
    assert check(cpu, case, forms, fetched_bytes=1 << 30) and not any(written)
    assert check(cpu, case, forms, fetched_bytes=0) and any(written)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("stride", [1, 2])
def test_direct_convolutions_fetch_the_rows_of_the_next_chunk_and_agree(
    cpu: str, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(2, 1, 3, 20, (19, 21), (3, 3), (stride, stride), (1, 1), (1, 1), (1, 1))
    for bytes_, fetches in ((1 << 30, 0), (0, 1)):
        fetched = fetched_in(lambda n=bytes_: check(cpu, case, (direct.propose_direct,), fetched_bytes=n), monkeypatch)
        assert bool(fetched) == bool(fetches)


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("taps", [3, 1])
def test_windows_of_large_planes_and_strided_points_fetch_the_next_rows_and_agree(
    cpu: str, taps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Depthwise tiles those that the tiles below read, copies of 1x1 those of the next channel."""
    groups, pads = (5, (1, 1)) if taps > 1 else (1, (0, 0))
    case = Case(1, groups, 5 // groups, 20 // groups, (19, 37), (taps, taps), (2, 2), (1, 1), pads, pads)
    forms = (propose_planes if taps > 1 else direct.propose_direct,)
    fetched = []
    for bytes_ in (1 << 30, 0):
        core = {"fetched_map": bytes_, "fetched_planes": bytes_}
        fetched.append(fetched_in(lambda core=core: check(cpu, case, forms, **core), monkeypatch))
    assert fetched[0] < fetched[1]


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize(("inputs", "residual"), [(70, False), (96, True)])
def test_products_of_few_tiles_agree_whether_their_map_is_fetched_or_not(cpu: str, inputs: int, residual: bool) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((inputs, 25 * 31), np.float32), rng.standard_normal((16, inputs), np.float32)
    more = rng.standard_normal((16, 25 * 31), np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"])]
    feed = {"x": x.reshape(1, inputs, 25, 31)}
    if residual:
        nodes.append(helper.make_node("Add", ["c", "r"], ["y"]))
        feed["r"] = more.reshape(1, 16, 25, 31)
    right = w.astype(np.float64) @ x + (more if residual else 0.0)
    for bytes_ in (1 << 30, 0):
        isa = with_core(target_of(cpu), fetched_bytes=bytes_)
        kernel = Generated(nodes, feed, {"w": w.reshape(16, inputs, 1, 1)}, target_of(cpu), isa)
        assert_near(kernel.run(), right.reshape(1, 16, 25, 31), inputs)


def fetched_in(checked: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of prefetches that are written while `checked`, which must hold, runs."""
    fetched: list[int] = []
    prefetch = emit.prefetch
    with monkeypatch.context() as patch:
        patch.setattr(emit, "prefetch", lambda *given, **how: fetched.append(1) or prefetch(*given, **how))
        assert checked()
    return len(fetched)
