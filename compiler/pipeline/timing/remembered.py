"""The times of plans that an earlier compile took, in the cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heterocc.artifacts.manifest import Range
from heterocc.artifacts.records import MalformedError, Record
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.files.records import DiskRecords, toolchain_digest
from heterocc.compiler.importer.identity import model_digest
from heterocc.compiler.pipeline.queried import Queried
from heterocc.compiler.pipeline.report import TimedPlan
from heterocc.compiler.pipeline.variants import VariantSpec
from heterocc.runtime.execute.tvm_api import available_cores

SOURCES = (
    "compiler/build",
    "compiler/checking",
    "compiler/pipeline/timing",
)
"""What a choice depends on beside the sources of the toolchain."""

_MOST_REASON = 300


class Timing(Record):
    """All plans of a variant with their times, or the reasons why they have none.

    `at` says at which sizes of dynamic dimensions they were timed, and `bounds` are those sizes of dimensions for which
    the first that is kept is; ONNX Runtime is faster at others.
    """

    plans: tuple[TimedPlan, ...]
    at: str
    bounds: dict[str, Range]


def key_of(queried: Queried, spec: VariantSpec, asked: Sequence[object], feed: Mapping[str, Any] | None) -> str:
    """What times depend on: the model, devices with their properties, pins, sizes, what is asked, machine, versions."""
    cpu = host_cpu()
    facts = (
        [(d.name, d.backend, d.target_json(), sorted(d.properties.items())) for d in spec.devices],
        repr(spec.affinity),
        [(name, sorted(found.items())) for name, found in sorted(queried.wrong.items())],
        asked,
        sorted((name, np.shape(value)) for name, value in (feed or {}).items()),
        sorted((name, found.min, found.max) for name, found in spec.bounds.items()),
        (cpu.name, sorted(cpu.features), available_cores()),
    )
    text = f"plans\n{toolchain_digest(*SOURCES)}\n{model_digest(queried.model)}\n{json.dumps(facts)}"
    return hashlib.sha256(text.encode()).hexdigest()


def read(records: DiskRecords, key: str) -> Timing | None:
    """The times of this key; None if there are none, or the record is damaged."""
    try:
        return Timing.model_validate(records.read(key) or {})
    except MalformedError:
        return None


def write(records: DiskRecords, key: str, timing: Timing) -> None:
    """Keep times, with short reasons."""
    short = [plan.model_copy(update={"why_not": (plan.why_not or "")[:_MOST_REASON] or None}) for plan in timing.plans]
    records.write(key, timing.model_copy(update={"plans": tuple(short)}).model_dump(mode="json"))
