"""The machine's links, and the figures of its devices."""

from __future__ import annotations

import dataclasses

import pytest

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.devices.present import SLOWER_OPENCL, SLOWER_VULKAN, target_device
from heterocc.compiler.placement.machine import DISCRETE_LINK, HOST_LINK, SHARED_LINK, link_between, placement_device
from heterocc.passes.cost import Link
from heterocc.runtime.machine.found import found_vulkan
from tests import sample_devices

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


def test_a_vulkan_driver_on_the_cpu_is_estimated_slower_than_opencl_on_it() -> None:
    vulkan = target_device(found_vulkan(0, dataclasses.replace(sample_devices.CARD, type="cpu", software=True)))
    assert vulkan.flops == pytest.approx(host_cpu().flops / SLOWER_VULKAN) and SLOWER_VULKAN > SLOWER_OPENCL
    assert placement_device(vulkan).launch > placement_device(POCL).launch
    assert placement_device(dataclasses.replace(vulkan, software=False)).launch == placement_device(POCL).launch
