from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterocc.runtime.plan.slots import ALIGNMENT, Lifetime, aligned, plan_slots

lifetimes = st.lists(
    st.builds(
        lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
        st.integers(0, 4096),
        st.integers(0, 20),
        st.integers(0, 10),
    ),
    max_size=30,
)


@given(lifetimes)
def test_no_two_buffers_that_are_alive_in_one_step_share_a_slot(buffers: list[Lifetime]) -> None:
    slots = plan_slots(buffers)
    for i, a in enumerate(buffers):
        for j in range(i):
            b = buffers[j]
            alive_together = set(range(a.first, a.last + 1)) & set(range(b.first, b.last + 1))
            assert not (alive_together and slots.slot[i] == slots.slot[j])


@given(lifetimes)
def test_every_buffer_fits_its_slot_and_the_total_is_at_most_the_naive_one(buffers: list[Lifetime]) -> None:
    slots = plan_slots(buffers)
    assert all(slots.sizes[s] >= b.nbytes for s, b in zip(slots.slot, buffers, strict=True))
    assert slots.nbytes <= sum(aligned(b.nbytes) for b in buffers)
    assert slots.nbytes <= plan_slots(buffers, reuse=False).nbytes


@given(lifetimes)
def test_slots_lie_one_after_the_other_at_aligned_offsets(buffers: list[Lifetime]) -> None:
    slots = plan_slots(buffers)
    ends = [offset + size for offset, size in zip(slots.offsets, slots.sizes, strict=True)]
    assert all(offset % ALIGNMENT == 0 for offset in slots.offsets)
    assert list(slots.offsets[1:]) == ends[:-1]


@given(lifetimes)
def test_planning_without_reuse_gives_every_buffer_a_slot_of_its_own(buffers: list[Lifetime]) -> None:
    assert sorted(plan_slots(buffers, reuse=False).slot) == list(range(len(buffers)))


def test_a_chain_of_values_needs_two_slots() -> None:
    chain = [Lifetime(1000, step, step + 1) for step in range(50)]
    assert len(plan_slots(chain).sizes) == 2


def test_a_large_buffer_is_placed_first_so_that_small_ones_fit_into_its_slot() -> None:
    slots = plan_slots([Lifetime(64, 0, 0), Lifetime(4096, 1, 1), Lifetime(64, 2, 2)])
    assert slots.sizes == (4096,)


@pytest.mark.parametrize("arguments", [(-1, 0, 0), (8, 3, 2)])
def test_an_impossible_lifetime_cannot_be_built(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="a buffer"):
        Lifetime(*arguments)


def test_buffers_of_a_whole_run_are_not_compared_with_each_other() -> None:
    inputs, outputs = [Lifetime(64, 0, 2)] * 40_000, [Lifetime(64, 1, 2)] * 40_000
    start = time.process_time()
    slots = plan_slots([*inputs, *outputs])
    assert time.process_time() - start < 3.0  # 0.3 s; each with each takes 12 s
    assert sorted(slots.slot) == list(range(80_000))


def test_a_buffer_of_a_whole_run_is_in_no_slot_of_others() -> None:
    slots = plan_slots([Lifetime(64, 0, 3), Lifetime(64, 0, 1), Lifetime(64, 2, 3), Lifetime(64, 0, 3)])
    assert slots.slot == (0, 1, 1, 2)
