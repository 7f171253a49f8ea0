"""The rules that schedule kernels for GPUs, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heterocc.compiler.lower.gpu.contraction.contraction import schedule_contraction
from heterocc.compiler.lower.gpu.contraction.tiled import schedule_tiled
from heterocc.compiler.lower.gpu.contraction.winograd import schedule_winograd
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import Packed
from heterocc.compiler.lower.gpu.plain import schedule_plain
from heterocc.compiler.lower.gpu.reduction.reduction import schedule_few_sums, schedule_rows
from heterocc.compiler.lower.gpu.window.depthwise import schedule_windows

if TYPE_CHECKING:
    from tvm import tirx


Schedule = Callable[["tirx.PrimFunc", Limits, Collection[int]], Packed | None]
"""The scheduled kernel, or None (or tvm's ScheduleError) where the rule does not know the kernel's form.

Given the kernel, what it may assume of the device, and the parameters (by index) whose layout it may change.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to schedule a kernel. Dumps show its name as the attribute RULE of the kernels that it scheduled."""

    name: str
    schedule: Schedule


def _plain(function: tirx.PrimFunc, limits: Limits, _: Collection[int]) -> Packed:
    return Packed(schedule_plain(function, limits))


RULES: tuple[Rule, ...] = (
    Rule("winograd", schedule_winograd),
    Rule("rows", schedule_few_sums),
    Rule("shared tile", schedule_tiled),
    Rule("register tile", schedule_contraction),
    Rule("windows", schedule_windows),
    Rule("rows", schedule_rows),
    Rule("plain", _plain),
)
"""The first that knows a kernel schedules it; the last knows every kernel with plain loops and raises for others."""

RULE = "heterocc.rule"
"""The attribute of a kernel that names its rule."""


def scheduled_by(rule: Rule, function: tirx.PrimFunc, limits: Limits, packable: Collection[int]) -> Packed | None:
    """The kernel scheduled by a rule, which it then names; None where the rule does not know it."""
    packed = rule.schedule(function, limits, packable)
    return None if packed is None else replace(packed, function=packed.function.with_attr(RULE, rule.name))
