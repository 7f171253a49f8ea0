"""The interface of passes, all passes by name, the policies, and the text form of a pipeline (`--passes`)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from heterocc.artifacts.errors import Hint, PipelineSpecError, UsageError
from heterocc.passes.greedy import Greedy
from heterocc.passes.manual import Manual
from heterocc.passes.merge import Merge
from heterocc.passes.mincut import MinCut
from heterocc.passes.objective import require_objective
from heterocc.passes.plan import Plan
from heterocc.passes.spec import SpecPass


class Pass(Protocol):
    """A step of placement: a frozen dataclass whose fields are its options and whose `repr` is its pipeline spec.

    `run` is a pure function of the plan: equal plans give equal results, and the argument is never changed. It raises
    HeteroccError if the user's input is at fault; any other exception is a bug.
    """

    @property
    def name(self) -> str:
        """The pass's name in a pipeline spec."""
        ...

    def run(self, plan: Plan) -> Plan:
        """The plan after this pass."""
        ...


PASSES: Mapping[str, type[SpecPass]] = MappingProxyType({p.name: p for p in (Greedy, Manual, Merge, MinCut)})
"""All passes that `--passes` can name. A new pass is added here."""

POLICIES: Mapping[str, str] = MappingProxyType(
    {
        "greedy": "greedy,manual",
        "merge": "greedy,manual,merge",
        "optimal": "manual,mincut",
    }
)
"""The pipelines of `--policy` by name."""

MEASURED = "measured"
"""The policy that compiles and times the plans of the others; it has no pipeline."""

_PASS = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\{([^{}]*)\})?\s*(,|$)")


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """The passes that a spec such as `greedy,merge{max-nodes=64}` names.

    `parse_pipeline(",".join(map(repr, passes))) == passes`. Raises PipelineSpecError (HC121).
    """
    passes: list[Pass] = []
    at = 0
    more = True
    while more:
        match = _PASS.match(text, at)
        if match is None:
            rest = text[at:].strip()
            raise PipelineSpecError(
                f"cannot read the pipeline from '{rest}' on" if rest else "a pass name is missing in the pipeline",
                where=Hint(f"passes={text!r}", f"--passes '{text}'"),
                hint=f"write passes as NAME or NAME{{option=value,…}}, separated by commas; {_known()}",
            )
        passes.append(_pass(match[1], match[2], text))
        at = match.end()
        more = match[3] == ","
    return tuple(passes)


def policy_pipeline(policy: str, objective: str = "latency") -> tuple[Pass, ...]:
    """The pipeline of a `--policy` with an `--objective`.

    Raises UsageError (HC120) for an unknown policy or objective, for `measured`, and for a policy that does not choose
    by the objective.
    """
    aim = require_objective(objective)
    if policy == MEASURED:
        raise UsageError(
            "policy 'measured' compiles and times plans, which only a whole compile does",
            where=Hint(f"policy={policy!r}", "--policy"),
            hint="compile with it, or choose by estimates: " + Hint("policy='optimal'", "--policy optimal"),
        )
    if policy not in POLICIES:
        raise UsageError(
            f"there is no policy '{policy}'",
            where=Hint(f"policy={policy!r}", "--policy"),
            hint=f"policies: {', '.join((*POLICIES, MEASURED))}",
        )
    passes = parse_pipeline(POLICIES[policy])
    if aim == "latency":
        return passes
    if not any(isinstance(p, MinCut) for p in passes):
        raise UsageError(
            f"policy '{policy}' does not choose by the objective '{aim}'",
            where=Hint(f"objective={objective!r}", "--objective"),
            hint="use " + Hint("policy='optimal'", "--policy optimal"),
        )
    return tuple(replace(p, objective=aim) if isinstance(p, MinCut) else p for p in passes)


def _pass(name: str, options: str | None, text: str) -> SpecPass:
    if name not in PASSES:
        close = difflib.get_close_matches(name, PASSES, n=1)
        hint = (f"did you mean '{close[0]}'? " if close else "") + _known()
        raise PipelineSpecError(
            f"there is no pass '{name}'", where=Hint(f"passes={text!r}", f"--passes '{text}'"), hint=hint
        )
    given: dict[str, str] = {}
    for option in (options or "").split(",") if (options or "").strip() else ():
        key, equals, value = (part.strip() for part in option.partition("="))
        if not (key and equals and value):
            raise PipelineSpecError(
                f"cannot read the option '{option.strip()}' of pass '{name}'",
                where=Hint(f"passes={text!r}", f"--passes '{text}'"),
                hint=f"write options as key=value; options of '{name}': {', '.join(PASSES[name].options()) or 'none'}",
            )
        if key in given:
            raise PipelineSpecError(
                f"option '{key}' of pass '{name}' is given twice", where=Hint(f"passes={text!r}", f"--passes '{text}'")
            )
        given[key] = value
    return PASSES[name].from_options(given)


def _known() -> str:
    shown = (f"{n}{{{','.join(p.options())}}}" if p.options() else n for n, p in PASSES.items())
    return f"passes: {', '.join(shown)}"
