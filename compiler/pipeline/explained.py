"""The reasons of a plan, for notes, reports and the record in the bundle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from heterocc.artifacts.files.writing import atomic_write
from heterocc.compiler.pipeline.queried import Queried
from heterocc.compiler.pipeline.repair import BuiltVariant
from heterocc.compiler.placement.side_by_side import plans_beside
from heterocc.passes.base import MEASURED
from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.explain.report import report_html
from heterocc.passes.plan import Plan


def explained(queried: Queried, plan: Plan, variant: BuiltVariant | None = None) -> Explanation:
    """A plan with its reasons, and those that were timed if it is that of a built variant."""
    request = queried.request
    if variant is None:
        return Explanation(plan, request.passes, request.policy, ())
    ranked = sorted(variant.timed, key=lambda p: not p.kept)
    measured = tuple((n, p.seconds) for p in ranked if p.seconds is not None for n in (p.name, *p.also))
    policy = request.policy if variant.passes is None else MEASURED
    return Explanation(plan, variant.passes or request.passes, policy, (), measured, timing=variant.timing)


def recorded(queried: Queried, variant: BuiltVariant) -> Explanation:
    """The plan of a built variant as explained, with the details that a report shows."""
    return replace(explained(queried, variant.built.plan, variant), details=queried.details)


def note_placement(queried: Queried, plans: Iterable[Plan]) -> None:
    """Note devices that get no node, with the reason, and plans that are slower than the CPU alone."""
    for note in dict.fromkeys(note for plan in plans for note in explained(queried, plan).notes):
        queried.reporter.note(note)


def write_report(queried: Queried, plan: Plan, variant: BuiltVariant | None = None) -> None:
    """Write the page of `--report` on the main variant, if given, with that of `--compare`."""
    request = queried.request
    path = request.options.report
    if path is not None:
        with queried.reporter.stage("explaining"):
            found = replace(explained(queried, plan, variant), details=queried.details)
            found = replace(found, others=plans_beside(plan, found.policy, dict(found.measured)))
            atomic_write(path, report_html(found, other=request.other))
