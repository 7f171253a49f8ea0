"""Results as tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from heterocc.artifacts.errors import command_form
from heterocc.runtime.cli.table import TextTable

if TYPE_CHECKING:  # a command loads only what it needs
    from heterocc.compiler.checking.verify import VerifyReport
    from heterocc.compiler.support.query import QueryResult


def query_table(result: QueryResult) -> Group:
    """The number of nodes of each operator type that each device runs, with reasons for the others."""
    from heterocc.compiler.support.report import columns, no_device, remarks, rows, totals

    table = Table(box=box.SIMPLE, pad_edge=False)
    operator, nodes, *devices, why = columns(result)
    table.add_column(operator, no_wrap=True)
    table.add_column(nodes, justify="right")
    for device in devices:
        table.add_column(device, justify="right", no_wrap=True)
    table.add_column(why, overflow="fold")
    for op_type, count, *cells, reasons in rows(result):
        counts = [Text(cell, style="" if cell == "all" else "red") for cell in cells]
        table.add_row(Text(op_type), count, *counts, Text(reasons))
    table.add_section()
    table.add_row(*totals(result))
    lines = [Text(command_form(line)) for line in remarks(result)]
    lines += [Text(command_form(line), style="red" if i == 0 else "") for i, line in enumerate(no_device(result))]
    return Group(table, *lines)


_MOST_ERRORS = 4
"""Outputs whose errors by compressed weights are shown."""


def verify_table(report: VerifyReport) -> Table:
    """The error and the verdict of each output of a bundle."""
    verdict = "WRONG" if not report.ok else "ok" if report.checked else "not checked"
    table = Table(box=None, pad_edge=False, title=f"variant {report.variant} against {report.reference}: {verdict}")
    table.title_justify = "left"
    for column in ("output", "max error", "mean error", "SNR dB", "verdict"):
        table.add_column(column, justify="left" if column in ("output", "verdict") else "right")
    for d in report.differences:
        if d.unchecked is not None:
            table.add_row(d.name, "", "", "", f"not checked: {d.unchecked}")
            continue
        table.add_row(d.name, f"{d.max_abs:.3g}", f"{d.mean_abs:.3g}", f"{d.snr:.1f}", "ok" if d.ok else d.reason)
    table.caption_justify = "left"
    lines = []
    if report.weight_errors:
        lost = ", ".join(e.text() for e in sorted(report.weight_errors, key=lambda e: e.snr)[:_MOST_ERRORS])
        lines.append(f"errors of the outputs by compressed weights: {lost}")
    if report.culprit is not None:
        lines.append(report.culprit.sentence())
    elif report.ok and not report.checked:
        lines.append("give the model, and inputs that give outputs to compare: --inputs")
    if lines:
        table.caption = "\n".join(lines)
    return table


def rich_table(table: TextTable) -> Table:
    """A table of `heterocc-run` for a terminal that may be narrower than its rows."""
    shown = Table(box=None, pad_edge=False)
    for column, title in enumerate(table.titles):
        shown.add_column(title, justify="right" if column in table.right else "left")
    for row in table.rows:
        shown.add_row(*row)
    return shown
