"""`heterocc partition --cost-table`: placement by a table of costs."""

from __future__ import annotations

from typing import Any

from heterocc.compiler.cli.console import ConsoleReporter
from heterocc.compiler.cli.options import policy_for, refuse_given
from heterocc.passes.show.printer import count
from heterocc.runtime.cli.output import print_json, print_plain
from heterocc.runtime.files.shape_options import parse_dims, parse_shapes

_UNUSED = (
    *("devices", "device_file", "property", "affinity", "dot", "write_affinity", "plan"),
    *("dump_dir", "pass_limit", "time_passes"),
)
"""Parameters of the command that a table leaves without effect."""


def print_placement(options: Any) -> None:
    """Place a model by a table of costs and print the plan. Raises UsageError (HC120) for options without effect."""
    from heterocc.compiler.placement.cost_table import partition_by_table

    refuse_given(
        options.given,
        _UNUSED,
        "with --cost-table",
        hint="the table names devices, costs and pins; leave the option out",
    )
    plan, unknown = partition_by_table(
        options.model,
        options.cost_table,
        policy=policy_for(options),
        objective=options.objective,
        passes=options.passes,
        shapes=parse_shapes(options.shape),
        dims=parse_dims(options.dim),
    )
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        ConsoleReporter().warn(
            f"the size of '{unknown[0]}'{more} is not known and counts as 0 bytes; --shape and --dim fix dynamic inputs"
        )
    if options.json:
        print_json(plan)
        return
    for line in _lines(plan):
        print_plain(line)


def _lines(plan: dict[str, Any]) -> list[str]:
    cost, bound = plan["cost_us"], plan["lower_bound_us"]
    gap = f"{100 * (cost - bound) / cost:.2f} %" if cost > bound * (1 + 1e-9) else "optimal"
    nbytes = sum(t["bytes"] for t in plan["transfers"])
    counts = [count(len(plan["partitions"]), "partition"), count(len(plan["transfers"]), "transfer")]
    lines = [
        f"{plan['policy']}: {cost:.3f} us, at best {bound:.3f} us ({gap}); {', '.join(counts)}, {count(nbytes, 'byte')}"
    ]
    name, value, best = plan["objective"]["name"], plan["objective"]["value"], plan["objective"]["lower_bound"]
    if name != "latency":
        places, unit = (0, "bytes") if name == "transfers" else (3, "us")
        lines.append(f"{name}: {value:.{places}f} {unit}, at best {best:.{places}f} {unit}")
    for number, part in enumerate(plan["partitions"]):
        nodes = ", ".join(part["nodes"][:6]) + (", …" if len(part["nodes"]) > 6 else "")
        when = f", {part['start_us']:.3f} to {part['end_us']:.3f} us" if "start_us" in part else ""
        lines.append(f"p{number} {part['device']}{when}: {count(len(part['nodes']), 'node')}: {nodes}")
    lines += [f"{t['value']}: {t['from']} -> {t['to']}, {count(t['bytes'], 'byte')}" for t in plan["transfers"]]
    return lines
