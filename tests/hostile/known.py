"""Operators that are not searched, answers that differ from ONNX Runtime's on purpose, and known defects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests.hostile.search import Finding, Verdict

NOT_SEARCHED: Mapping[str, str] = {
    "AllClassNMS": "an operator of an old framework, which neither ONNX nor ONNX Runtime has",
    "Constant": "has no inputs",
    "Optional": "its result is not a tensor; OptionalGetElement and OptionalHasElement are searched",
    "RandomNormal": "has no inputs",
    "RandomUniform": "has no inputs",
    "Sizes": "a check that the import writes, which no model has",
}
"""Operators that have a converter and no model, with the reason."""


@dataclass(frozen=True, slots=True)
class Known:
    """Findings of one kind: of an operator ("" for all), with a verdict and a part of ONNX Runtime's answer.

    `what` is a regular expression for a part of what makes the request differ from the valid one.
    """

    operator: str
    verdict: Verdict
    reference: str
    reason: str
    what: str = ""


_ROOM = "is computed in parts, for which ONNX Runtime has no memory, and takes long"

ON_PURPOSE: tuple[Known, ...] = (
    Known("", "timeout", "Failed to allocate memory", _ROOM),
    Known("", "timeout", "bad_alloc", _ROOM),
    Known("", "we accept", "Failed to allocate memory", "needs less memory"),
    Known("", "we accept", "bad_alloc", "needs less memory"),
    Known("Loop", "timeout", "", "a million turns, each of which maps guard pages"),
    Known("Scan", "timeout", "", "tens of thousands of turns, each of which maps guard pages"),
    Known(
        "Attention",
        "we accept",
        "ComputeOutputShapeForAttention",
        "ONNX pads a mask, and broadcasts it",
        "attn_mask|every",
    ),
    Known("LinearAttention", "we accept", "running Add node", "a state for one item is broadcast, as Add does"),
    Known("ReduceMin", "we accept", "empty set with bool type", "ONNX defines the result"),
    Known("ReduceMax", "we accept", "empty set with bool type", "ONNX defines the result"),
    Known(
        "ReduceMax",
        "we accept",
        "duplicate value in 'axis'",
        "an axis that is named twice is taken once, as of numbers",
    ),
    Known(
        "ReduceMin",
        "we accept",
        "duplicate value in 'axis'",
        "an axis that is named twice is taken once, as of numbers",
    ),
    Known("Upsample", "we accept", "'Linear' mode only supports", "ONNX has linear interpolation along all axes"),
    Known(
        "MeanVarianceNormalization",
        "different",
        "",
        "one value, repeated: what rounding leaves of the spread is divided by itself",
        r"\[1, 1, 1, 1\] ->|every 1 ->",
    ),
    Known("Resize", "we accept", "'Cubic' mode only supports", "ONNX has cubic interpolation along all axes"),
    Known(
        "RotaryEmbedding", "we accept", "position_ids value", "ONNX defines it by Gather, for which -1 is the last row"
    ),
    Known("Scan", "we accept", "OutputMLValue", "a state of one element is broadcast by the body's Add"),
    Known("Unique", "different", "", "ONNX Runtime takes all numbers for NaN if one is", "= nan"),
    Known("ai.onnx.ml::Binarizer", "we accept", "is NaN", "NaN is not above the threshold"),
    Known(
        "com.microsoft::QLinearSoftmax", "we accept", "x_scale must be positive", "its arithmetic has other scales, too"
    ),
    Known(
        "com.microsoft::QLinearGlobalAveragePool",
        "we accept",
        "out of computation range",
        "ONNX Runtime's multiplication in integers has no such scales",
    ),
    Known(
        "RotaryEmbedding", "we accept", "Updating cos_cache", "only tables in the order of tokens have to be so long"
    ),
)
"""Answers that are right, or as good as an error."""

NOT_MENDED: tuple[Known, ...] = ()
"""Defects. Each names what is wrong; there is no other place where the search leaves one out."""


def explained(finding: Finding) -> str:
    """The reason why a finding is no news; empty if it is."""
    return next(
        (
            known.reason
            for known in (*ON_PURPOSE, *NOT_MENDED)
            if known.operator in ("", finding.operator)
            if known.verdict == finding.verdict and known.reference in finding.reference
            if re.search(known.what, finding.what)
        ),
        "",
    )
