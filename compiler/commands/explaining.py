"""Explanations of placements: of a model that is placed now, and of the variants of a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Unpack

import onnx

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import BundleError, InputError, OutputFileError, PipelineSpecError, UnknownDeviceError
from heterocc.artifacts.files.reading import reading
from heterocc.artifacts.files.writing import atomic_write, require_writable
from heterocc.artifacts.foreign import handlers_heard, pass_foreign
from heterocc.artifacts.manifest import Manifest, Variant
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler.api.collection import collecting_rarely
from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.importer.reading.parse import read_proto
from heterocc.compiler.importer.reading.source import AnyModel, ModelSource, as_source
from heterocc.compiler.options import CompileOptions, Options, named_options, with_overrides
from heterocc.compiler.pipeline.compile import place_main
from heterocc.compiler.pipeline.request import files_of
from heterocc.compiler.placement.side_by_side import plans_beside
from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.explain.measured import Kind, Measured, Moment, Timed
from heterocc.passes.explain.reasons import NodeReason
from heterocc.passes.explain.record import read_record
from heterocc.passes.explain.report import report_html
from heterocc.runtime.profile.profile import Profile, ProfileEvent


@named_options
@handlers_heard()
@collecting_rarely()
def explain_model(
    model: AnyModel,
    options: CompileOptions | None = None,
    reporter: Reporter | None = None,
    *,
    base_dir: str | Path | None = None,
    annotate: str | Path | None = None,
    **overrides: Unpack[Options],
) -> Explanation:
    """Place a model's nodes and explain the plan; arguments are as in `partition_model`.

    The result has a reason for every node, costs of partitions and transfers, and the plans of other policies and of
    each device alone. `annotate` is the path of a copy of the model, with the device, partition, time and reason of
    each node in its metadata. Raises a HeteroccError for every error that the user can correct.
    """
    options = with_overrides(explain_model, options, overrides)
    source = as_source(model, base_dir)
    outputs = [Path(path) for path in (options.report, annotate) if path is not None]
    with reading(files_of(source, options)):
        for path in outputs:
            require_writable(path)
        placed = place_main(source, options, reporter or Reporter())
        plan, (policy, passes) = placed.placed[0].plan, placed.request.pipeline
        found = Explanation(plan, passes, policy, plans_beside(plan, policy), details=placed.details)
        if options.report is not None:
            atomic_write(options.report, report_html(found, other=placed.request.other))
        if annotate is not None:
            write_annotated(source, found, Path(annotate))
    return found


def explain_bundle(path: str | Path, devices: str | None = None) -> Explanation:
    """Explain the placement of a variant of a bundle: the first one, or that of the name or the devices in `devices`.

    Raises BundleError (HC3xx) for a damaged bundle, UnknownDeviceError (HC401) for a variant that it lacks, and
    InputError (HC100) for a bundle without records of placements, which an earlier heterocc wrote.
    """
    with open_bundle(path) as bundle:
        variant = _chosen(bundle.manifest, devices, str(path))
        member = str(PurePosixPath(variant.plan).with_suffix(".json"))
        if member not in {m.name for m in bundle.manifest.members}:
            raise InputError(
                f"the bundle has no record of the placement of variant {variant.name}",
                where=str(path),
                hint="compile the model again, or see `heterocc inspect --plan`",
            )
        found = _recorded(bundle, member, str(path))
        beside = tuple(
            f"other shapes run in variant {other.name}: {other.summary}"
            for other in bundle.manifest.with_shapes(variant)
            if other is not variant
        )
    return replace(found, beside=beside, others=plans_beside(found.plan, found.policy, dict(found.measured)))


def _chosen(manifest: Manifest, devices: str | None, where: str) -> Variant:
    lists = {",".join(d.name for d in v.devices): v for v in reversed(manifest.variants)}
    named = {name.upper(): v for name, v in (*lists.items(), *((v.name, v) for v in manifest.variants))}
    variant = manifest.variants[0] if devices is None else named.get(devices.upper())
    if variant is None:
        raise UnknownDeviceError(
            f"the bundle has no variant '{devices}'",
            where=where,
            hint=f"variants: {', '.join(v.name for v in manifest.variants)}",
        )
    return variant


def _recorded(bundle: Bundle, member: str, where: str) -> Explanation:
    try:
        return read_record(bundle.text(member))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, PipelineSpecError) as error:
        pass_foreign(error)
        raise BundleError(
            f"the record of the placement is malformed: {error}",
            where=f"{where}: {member}",
            hint="compile the model again",
        ) from error


MOST_MOMENTS = 20_000
"""The steps of one run that a report shows; a run of loops may have more."""


def measured_run(profile: Profile) -> Measured:
    """The measured partitions, transfers and kernels of a profile, and one run step by step, for a report.

    Times are medians where these are known: one disturbed run would change the mean of few runs.

    The run is the one of median length among those of which all steps are known.
    """
    kept = [r for r in profile.records if r.kind != "node" and r.status == "EXECUTED"]
    steps = tuple(
        Timed(_KINDS[r.kind], r.name, r.device, r.partition, (r.real_ms if r.median_ms is None else r.median_ms) / 1e3,
              r.nodes, r.exec_type.partition(" ")[2], r.calls, r.clock)
        for r in kept
    )  # fmt: skip
    place = {id(record): i for i, record in enumerate(kept)}
    window = _one_run(profile.events)
    first = window[0].begin if window else 0
    threads: dict[int, int] = {}
    moments = tuple(
        Moment(place[id(e.record)], (e.begin - first) / 1e9, (e.end - first) / 1e9, _track(e, threads))
        for e in window[:MOST_MOMENTS]
        if id(e.record) in place
    )
    notes = list(profile.notes)
    if len(window) > MOST_MOMENTS:
        notes.append(f"the timeline has the first {MOST_MOMENTS} of {len(window)} steps of the run")
    return Measured(steps, profile.runs, moments, "; ".join(notes))


_KINDS: dict[str, Kind] = {"partition": "partition", "transfer": "transfer", "kernel": "kernel"}


def _track(event: ProfileEvent, threads: dict[int, int]) -> str:
    record = event.record
    if record.clock == "device":
        return f"{record.device}, its own clock"
    caller = threads.setdefault(event.thread, len(threads) + 1)
    return f"{'transfers' if record.kind == 'transfer' else record.device}, thread {caller}"


def _one_run(events: Sequence[ProfileEvent]) -> Sequence[ProfileEvent]:
    """The events of the run of median length, and what other threads did meanwhile.

    A run begins with the step that comes first in a profile; the last run of a thread may not be recorded to its end.
    """
    opening = next((e.record for e in events if e.record.kind != "kernel"), None)
    begins: dict[int, list[int]] = {}
    for event in events:
        if event.record is opening:
            begins.setdefault(event.thread, []).append(event.begin)
    runs = sorted((b - a, a, b) for times in begins.values() for a, b in pairwise(times))
    if not runs:
        return events
    _, begin, end = runs[len(runs) // 2]
    return [e for e in events if begin <= e.begin < end]


FOLDED = "none: folded or removed by the import"
"""The device of nodes that the import folds into constants, or removes."""


def annotated(source: ModelSource, found: Explanation) -> onnx.ModelProto:
    """The model with `heterocc.device`, `.partition`, `.estimated_us` and `.why` in every node's metadata.

    A node that became part of another one has that one's values, one that became several has all devices and
    partitions, and the sum of the times. Bodies of control flow have none. Weights in external data stay where they
    are: the annotated model names the same files.
    """
    proto, _ = read_proto(source)
    by_name: dict[str, list[NodeReason]] = {}
    for node, reason in zip(found.plan.graph.nodes, found.nodes, strict=True):
        for name in dict.fromkeys((*node.original, node.name)):
            by_name.setdefault(name, []).append(reason)
    for index, node in enumerate(proto.graph.node):
        # The import calls nodes without a name by their type and number.
        reasons = by_name.get(node.name or f"{node.op_type}_{index}", [])
        old = [entry for entry in node.metadata_props if not entry.key.startswith("heterocc.")]
        del node.metadata_props[:]
        node.metadata_props.extend(old)
        for key, value in _properties(reasons).items():
            node.metadata_props.add(key=f"heterocc.{key}", value=value)
    return proto


def write_annotated(source: ModelSource, found: Explanation, path: Path) -> None:
    """Write the annotated model. Raises OutputFileError (HC111) if it cannot be written or is too large for a file."""
    try:
        data = annotated(source, found).SerializeToString(deterministic=True)
    except ValueError as error:
        pass_foreign(error)
        raise OutputFileError(
            "the annotated model is larger than 2 GB, the limit of ONNX's file format",
            where=str(path),
            hint="save the model's weights as external data",
        ) from error
    atomic_write(path, data)


def _properties(reasons: Sequence[NodeReason]) -> Mapping[str, str]:
    if not reasons:
        return {"device": FOLDED}
    times = [r.seconds for r in reasons if r.seconds is not None]
    found = {
        "device": ", ".join(dict.fromkeys(r.device for r in reasons)),
        "partition": ", ".join(dict.fromkeys(f"p{r.partition}" for r in reasons)),
        "why": "; ".join(dict.fromkeys(r.sentence for r in reasons)),
    }
    return {**found, "estimated_us": f"{sum(times) * 1e6:.3f}"} if len(times) == len(reasons) else found
