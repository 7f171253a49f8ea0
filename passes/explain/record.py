"""The record of a placement in a bundle, from which it can be explained later."""

from __future__ import annotations

import json

from heterocc.passes.base import parse_pipeline
from heterocc.passes.explain.details import Details
from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.show.serialize import plan_from_json, plan_to_json

RECORD_FORMAT = 1
"""Version of the record; a reader refuses any other."""


def write_record(found: Explanation) -> str:
    """The record as JSON: the plan with its graph and machine, the passes, the times of timed plans, and details."""
    data = {
        "format": RECORD_FORMAT,
        "policy": found.policy,
        "passes": ",".join(map(repr, found.passes)),
        "measured": [[name, seconds] for name, seconds in found.measured],
        "timing": found.timing,
        "plan": plan_to_json(found.plan),
        "details": found.details.to_json(),
    }
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False) + "\n"


def read_record(text: str) -> Explanation:
    """The explanation in the output of `write_record`, without other plans.

    Raises ValueError, KeyError, TypeError, AttributeError or PipelineSpecError (HC121) for any other text.
    """
    data = json.loads(text)
    if data["format"] != RECORD_FORMAT:
        raise ValueError(f"format {data['format']} is not {RECORD_FORMAT}")
    measured = tuple((str(name), float(seconds)) for name, seconds in data["measured"])
    plan, passes = plan_from_json(data["plan"]), parse_pipeline(data["passes"])
    timing = str(data.get("timing", ""))  # earlier releases wrote none
    details = Details.from_json(data.get("details", {}))
    return Explanation(plan, passes, str(data["policy"]), (), measured, timing=timing, details=details)
