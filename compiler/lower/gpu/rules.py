"""The rules that schedule kernels for GPUs, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heterocc.compiler.lower.gpu.contraction.contraction import schedule_contraction
from heterocc.compiler.lower.gpu.contraction.sized import schedule_sized
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
"""A function from a kernel to the scheduled kernel; None (or tvm's ScheduleError) if the rule does not apply to it.

Its arguments are the kernel, the limits of the device, and the parameters (by index) whose layout it may change.
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
    Rule("rows", schedule_few_sums),  # the rule of rows, before the tiles for a few long sums of products
    Rule("shared tile", schedule_tiled),
    Rule("register tile", schedule_contraction),
    Rule("windows", schedule_windows),
    Rule("rows", schedule_rows),
    Rule("plain", _plain),
)
"""The rules by priority: the first that applies to a kernel schedules it. The last applies to every kernel with plain
loops, and raises LoweringError for others."""

SIZED_RULES: tuple[Rule, ...] = (Rule("tile of sizes", schedule_sized), RULES[-1])
"""The rules for kernels with sizes that are known only at run time, by priority."""

RULE = "heterocc.rule"
"""The attribute of a kernel that names its rule."""


def scheduled_by(rule: Rule, function: tirx.PrimFunc, limits: Limits, packable: Collection[int]) -> Packed | None:
    """The kernel scheduled by a rule, with the rule's name in its attribute RULE; None if the rule does not apply."""
    packed = rule.schedule(function, limits, packable)
    return None if packed is None else replace(packed, function=packed.function.with_attr(RULE, rule.name))
