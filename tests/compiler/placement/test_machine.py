"""The machine's links, and the figures of its devices."""

from __future__ import annotations

import pytest

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.placement.machine import DISCRETE_LINK, HOST_LINK, SHARED_LINK, link_between, placement_device
from heterocc.passes.cost import Link

CPU = TargetDevice("CPU", "cpu", unit="cpu", flops=3e11, bandwidth=2.4e10)
ORT = TargetDevice("ORT", "ort", unit="cpu")
CARD = TargetDevice("CARD", "opencl", unit="discrete")
POCL = TargetDevice("POCL", "opencl", unit="cpu", software=True)


def test_links_follow_where_memory_lies() -> None:
    assert link_between(CPU, ORT) == HOST_LINK
    assert link_between(CPU, CARD) == link_between(CARD, CPU) == DISCRETE_LINK
    assert link_between(POCL, CPU) == SHARED_LINK
    assert link_between(CARD, POCL).latency == pytest.approx(DISCRETE_LINK.latency + SHARED_LINK.latency)
    assert link_between(CARD, POCL).bandwidth == pytest.approx(5e9)


def test_a_stated_link_wins_in_both_directions() -> None:
    board = TargetDevice("BOARD", "opencl", unit="discrete", links={"CPU": Link(1e-3, 1e8)})
    assert link_between(board, CPU) == link_between(CPU, board) == Link(1e-3, 1e8)
    assert link_between(board, ORT) == DISCRETE_LINK


def test_a_devices_own_figures_come_before_those_of_its_kind() -> None:
    assert (placement_device(CPU).flops, placement_device(CPU).bandwidth) == (3e11, 2.4e10)
    assert placement_device(CARD).flops > placement_device(POCL).flops
    assert placement_device(ORT).last_resort
