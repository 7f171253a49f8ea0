"""What every pass keeps on random graphs: valid plans, and merge never adds cost or partitions."""

from __future__ import annotations

import dataclasses

import pytest

from heterocc.passes.plan import Partition
from tests.passes.graphs import chain
from tests.passes.many import check, faults, random_start


def test_passes_keep_random_graphs_valid() -> None:
    assert sum(check(seed) for seed in range(260)) > 900


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 10_000, 1_000))
def test_passes_keep_many_random_graphs_valid(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + 1_000)) > 3_000


def test_a_fault_is_seen() -> None:
    plan = chain("cgc")
    assert not faults(plan) and random_start(1) == random_start(1)
    broken = dataclasses.replace(plan)
    object.__setattr__(broken, "partitions", plan.partitions[::-1])
    assert faults(broken) == ["n1 runs before n0", "n2 runs before n1"]
    object.__setattr__(broken, "partitions", (*plan.partitions[:2], Partition("CPU", ("n1", "n2"))))
    assert "n1 is placed twice" in faults(broken)
