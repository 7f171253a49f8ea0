"""Explanations of placements: of a model that is placed now, and of the variants of a bundle."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Unpack

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import BundleError, InputError, PipelineSpecError, UnknownDeviceError
from heterocc.artifacts.files.reading import reading
from heterocc.artifacts.files.writing import atomic_write, require_writable
from heterocc.artifacts.manifest import Manifest, Variant
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler.driver import partition_model
from heterocc.compiler.importer.reading.source import AnyModel, as_source
from heterocc.compiler.options import CompileOptions, Options, named_options, with_overrides
from heterocc.compiler.placement.annotate import write_annotated
from heterocc.compiler.placement.run_passes import pipeline_of
from heterocc.compiler.placement.side_by_side import plans_beside
from heterocc.compiler.progress import Reporter
from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.explain.record import read_record
from heterocc.passes.explain.report import Timed, report_html
from heterocc.runtime.profile.profile import Profile


@named_options
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
    files: dict[str | os.PathLike[str], str] = {} if source.data is not None else {source.path: "the model"}
    outputs = [Path(path) for path in (options.report, annotate) if path is not None]
    with reading(files):
        for path in outputs:
            require_writable(path)
        plan = partition_model(model, replace(options, report=None), reporter, base_dir=base_dir).plan
        policy, passes = pipeline_of(options)
        found = Explanation(plan, passes, policy, plans_beside(plan, policy))
        if options.report is not None:
            atomic_write(options.report, report_html(found))
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
        raise BundleError(
            f"the record of the placement is malformed: {error}",
            where=f"{where}: {member}",
            hint="compile the model again",
        ) from error


def timed_steps(profile: Profile) -> tuple[Timed, ...]:
    """The measured partitions, transfers and kernels of a profile, for a report."""
    return tuple(
        Timed(r.kind, r.name, r.device, r.partition, r.real_ms / 1e3, r.nodes)
        for r in profile.records
        if r.kind != "node" and r.status == "EXECUTED"
    )
