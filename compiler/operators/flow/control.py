"""Branches and loops."""

from __future__ import annotations

from heterocc.compiler.operators.record import STATE, Operator
from heterocc.compiler.symbolic.requirement import Needs


def loop(needs: Needs) -> None:
    """Loop and If: a number of trips and a condition."""
    needs.single(0)
    needs.single(1)  # an If has no second input


def scan(needs: Needs) -> None:
    """Scan: the sequences that are read have one length."""
    count = needs.given.attribute("num_scan_inputs", 0)
    axes = needs.given.attribute("scan_input_axes") or [0] * count
    first = len(needs.given.shapes) - count
    for number_ in range(1, count):
        needs.equal(first + number_, axes[number_], needs.size(first, axes[0]))


OPERATORS = (
    Operator("If", control="branches", needs=loop),
    Operator("Loop", control="loop", needs=loop, float32_results=STATE),
    Operator("Scan", control="scan", needs=scan, float32_results=STATE),
    Operator("SequenceMap", expanded=True),
)
