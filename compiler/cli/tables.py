"""Results as tables on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from heterocc.artifacts.errors import command_form
from heterocc.compiler.cli.bench import PERCENTILES, BenchResult

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
    if report.culprit is not None:
        table.caption = report.culprit.sentence()
    elif report.ok and not report.checked:
        table.caption = "give the model, and inputs that give outputs to compare: --inputs"
    return table


def bench_table(result: BenchResult) -> Table:
    """Latencies and throughput of each runner, and the ratio of their medians if there are two."""
    table = Table(title=None, box=None, pad_edge=False)
    for column in ("", "runs", *(f"{name} ms" for name, _ in PERCENTILES), "runs/s"):
        table.add_column(column, justify="left" if not column else "right")
    for timing in result.timings:
        cells = [f"{timing.percentile(q):.3f}" for _, q in PERCENTILES]
        table.add_row(timing.name, str(len(timing.latencies)), *cells, f"{timing.throughput:.1f}")
    if result.ratio is not None:
        table.add_row("ratio of medians", "", "", f"{result.ratio:.2f}")
    return table
