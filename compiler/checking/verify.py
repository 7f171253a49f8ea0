"""Verification of a bundle's results with golden vectors, or with ONNX Runtime on new inputs, and bisection."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.dynamic import is_static
from heterocc.artifacts.errors import (
    FeedError,
    Hint,
    InternalError,
    InvalidGraphError,
    ModelRunError,
    UsageError,
    VerifyError,
)
from heterocc.artifacts.manifest import Golden, Variant
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.signing.keys import AnyKey
from heterocc.artifacts.text.one_line import one_line
from heterocc.compiler.api.keywords import checked_keywords
from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.checking.bisect import Culprit, find_culprit, half_nodes
from heterocc.compiler.checking.compare import Difference, Tolerance, blindness, compare
from heterocc.compiler.checking.judge import Judge
from heterocc.compiler.checking.weight_cost import OutputError, errors_by_weights
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.random_nodes import not_compared
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.importer.weight_form import WeightForm
from heterocc.passes.show.printer import count
from heterocc.runtime import load
from heterocc.runtime.files.inputs import read_files

_Expected: TypeAlias = tuple[ImportedModel, dict[str, Any], Mapping[str, Any]]
"""The model at some shapes, inputs by name of its graph, and ONNX Runtime's outputs for them."""


@dataclass(frozen=True)
class VerifyReport:
    """The differences by output, the kind of reference, the result of bisection, and the session's notes.

    For a bundle with compressed weights the reference is the model with such weights, and `weight_errors` are what
    these change in the outputs of the model as it was given.
    """

    variant: str
    reference: str
    differences: tuple[Difference, ...]
    culprit: Culprit | None = None
    notes: tuple[str, ...] = ()
    weight_errors: tuple[OutputError, ...] = ()

    def __repr__(self) -> str:
        """One short line; the fields hold every output."""
        wrong = [d.name for d in self.differences if not d.ok]
        found = f"wrong: {', '.join(wrong[:3])}{', …' if len(wrong) > 3 else ''}" if wrong else "ok"
        return (
            f"<VerifyReport {self.variant} against {self.reference}: {count(len(self.differences), 'output')}, {found}>"
        )

    @property
    def ok(self) -> bool:
        """Return whether every compared output is within the tolerance."""
        return all(d.ok for d in self.differences)

    @property
    def checked(self) -> bool:
        """Return whether any output was compared with a significant reference."""
        return any(d.unchecked is None for d in self.differences)

    def to_json(self) -> dict[str, object]:
        """The report in the form of `heterocc verify --json`."""
        return {
            "ok": self.ok,
            "checked": self.checked,
            "variant": self.variant,
            "reference": self.reference,
            "outputs": [d.to_json() for d in self.differences],
            "culprit": None if self.culprit is None else self.culprit.to_json(),
            "notes": list(self.notes),
            "weight_errors": [e.to_json() for e in self.weight_errors],
        }


@checked_keywords
def verify_bundle(
    path: Path,
    model: Path | None,
    *,
    inputs: Sequence[str] = (),
    devices: str | None = None,
    threads: int | None = None,
    seed: int = 1,
    bisect: bool = False,
    trusted_keys: AnyKey | Sequence[AnyKey] | None = None,
    require_signature: bool = False,
    reporter: Reporter | None = None,
) -> VerifyReport:
    """Run a bundle and compare it with its golden vectors or, with `model`, with ONNX Runtime on new inputs.

    `trusted_keys` and `require_signature` are as for `heterocc.runtime.load`.
    If the bundle's weights were compressed, those of `model` are compressed in the same way before the comparison.
    Raises VerifyError if the bundle holds no golden vectors and no model is given, or if the bundle was compiled from
    another model.
    """
    reporter = reporter or Reporter()
    if bisect and model is None:
        raise UsageError(
            "the search for the wrong kernel needs the model",
            where=Hint("bisect=True", "--bisect"),
            hint=Hint("verify_bundle(bundle, model, bisect=True)", "heterocc verify m.hcb model.onnx --bisect"),
        )
    if inputs and model is None:
        raise UsageError("inputs are given, but not the model to compare with", where=Hint("`inputs`", "--inputs"))
    with open_bundle(path, trusted_keys=trusted_keys, require_signature=require_signature) as bundle:
        if model is None:
            return _against_golden(path, bundle, devices, threads)
        return _against_model(path, bundle, model, inputs, devices, threads, seed, bisect, reporter)


def _against_golden(path: Path, bundle: Bundle, devices: str | None, threads: int | None) -> VerifyReport:
    goldens = bundle.manifest.all_goldens
    if not goldens:
        raise VerifyError(
            "the bundle holds no golden vectors",
            where=str(path),
            hint=Hint(
                "give the model, too: verify_bundle(bundle, model)", "give the model: heterocc verify m.hcb model.onnx"
            ),
        )
    with load(path, devices, threads=threads, expect_digest=bundle.digest) as session:
        found: list[Difference] = []
        for golden in goldens:
            feed, expected = _arrays(bundle, golden.inputs), _arrays(bundle, golden.outputs)
            try:
                results = session.run(feed)
            except FeedError:
                if len(goldens) == 1:
                    raise
                continue  # the chosen devices have no code for these shapes
            tolerance = _golden_tolerance(golden, session.variant)
            at = _at_shapes(_shapes(feed)) if len(goldens) > 1 else ""
            for name in (output.name for output in bundle.manifest.model.outputs):
                if name in expected:
                    found.append(_golden_difference(name, results[name], expected[name], tolerance, at))
                else:
                    found.append(_not_compared(name, session.variant))
        reference = f"the golden vectors (seed {goldens[0].seed})"
        return VerifyReport(session.variants[0].name, reference, tuple(found), notes=session.notes)


def _at_shapes(shapes: Mapping[str, Sequence[int]]) -> str:
    """The shapes of inputs as the end of an output's name: ` at x=8,3,224,224`."""
    return " at " + "; ".join(f"{name}={','.join(map(str, shape))}" for name, shape in shapes.items())


def _golden_difference(
    name: str, got: Any, expected: np.ndarray[Any, Any], tolerance: Tolerance, at: str
) -> Difference:
    found = compare(name + at, got, expected, tolerance)
    return replace(found, unchecked=blindness(expected)) if found.ok else found


def _not_compared(name: str, variant: Variant) -> Difference:
    """The difference of an output without golden vectors; the reason is from the variant's notes if it is random."""
    head = one_line(not_compared(name, ""))
    reasons = (note.removeprefix(head) for note in variant.notes if note.startswith(head))
    return Difference(name, 0.0, 0.0, math.inf, None, next(reasons, "the golden vectors do not have it"))


def _golden_tolerance(golden: Golden, variant: Variant) -> Tolerance:
    """The tolerance of the golden vectors. A ratio meant for half precision applies only to variants that use it."""
    exact = not golden.steps and not any(d.settings.precision != "f32" for d in variant.devices)
    snr = math.inf if golden.snr is None or exact else golden.snr
    return Tolerance(rtol=golden.rtol, atol=golden.atol, steps=golden.steps, snr=snr)


def _arrays(bundle: Bundle, members: Mapping[str, str]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: bundle.array(member) for name, member in members.items()}


def _against_model(
    path: Path,
    bundle: Bundle,
    model_path: Path,
    inputs: Sequence[str],
    devices: str | None,
    threads: int | None,
    seed: int,
    bisect: bool,
    reporter: Reporter,
) -> VerifyReport:
    source = ModelSource(model_path, weights=_form(bundle))
    with load(path, devices, threads=threads, expect_digest=bundle.digest) as session:
        given = read_files({info.name: info for info in session.inputs}, inputs, None) if inputs else None
        requests = _requests(bundle, session.variants, given)
        found: list[Difference] = []
        culprit: Culprit | None = None
        lost: tuple[OutputError, ...] = ()
        for shapes in requests:
            at = _at_shapes(shapes) if len(requests) > 1 else ""
            model, feed, expected = _expected(
                bundle, partial(_of_import, bundle, source, shapes, given, seed, reporter)
            )
            if source.weights is not None and not lost:
                with reporter.stage("running the model as it was given"):
                    lost = errors_by_weights(model_path, model, feed, expected)
            outer = {source: feed[name] for name, source in _sources(model, model.graph.inputs) if name in feed}
            with reporter.stage("running the bundle"):
                results = session.run(outer)
            half, paired = (half_nodes(session.variant, model, precision) for precision in ("f16", "bf16"))
            judge = Judge(model, feed, model.graph.outputs, half=half, paired=paired)
            here = [
                judge.compare(name, results[source], expected[name], label=source + at)
                for name, source in _sources(model, model.graph.outputs)
            ]
            found += here
            if bisect and culprit is None and not all(d.ok for d in here):
                with reporter.stage("looking for the first wrong kernel"):
                    culprit = find_culprit(session, model, feed)
        form = "" if source.weights is None else f" with weights in {source.weights}"
        reference = "ONNX Runtime" + form + ("" if inputs else f" (seed {seed})")
        return VerifyReport(session.variants[0].name, reference, tuple(found), culprit, session.notes, lost)


def _form(bundle: Bundle) -> WeightForm | None:
    """The form that the weights of the bundle's model were compressed to. Raises VerifyError for an unknown one."""
    found = bundle.manifest.model.compressed
    if found is None:
        return None
    try:
        return WeightForm.parse(found.form).keeping(frozenset(found.keep))
    except UsageError as error:
        raise VerifyError(
            f"the bundle's weights were compressed to '{one_line(found.form)}', which this release does not know",
            where=str(bundle.path),
            hint="verify it with the release that compiled it, or without the model",
        ) from error


def _requests(
    bundle: Bundle, variants: Sequence[Variant], given: Mapping[str, Any] | None
) -> list[dict[str, tuple[int, ...]]]:
    """The shapes of inputs to verify: those of static variants, and for dynamic ones those of the golden vectors.

    With `given` inputs their shapes. Raises VerifyError if there are none.
    """
    names = [spec.name for spec in bundle.manifest.model.inputs]
    found: list[dict[str, tuple[int, ...]]] = []
    for variant in variants:
        specs = [variant.values[index] for index in variant.inputs]
        if all(is_static(spec) or spec.shape is None for spec in specs):
            found.append({n: _numbers(s.shape) for n, s in zip(names, specs, strict=True) if s.shape is not None})
        else:
            found += [_shapes(_arrays(bundle, golden.inputs)) for golden in bundle.manifest.all_goldens]
    if not found and not given:
        raise VerifyError(
            "the bundle has dynamic inputs, and no golden vectors that give them shapes",
            where=str(bundle.path),
            hint=Hint("give inputs of the shapes to verify (`inputs`)", "give inputs with --inputs"),
        )
    if given is not None:
        own = {name: shape for name, shape in _shapes(given).items() if name in names}
        return [{**(found[0] if found else {}), **own}]
    return [shapes for place, shapes in enumerate(found) if shapes not in found[:place]]


def _expected(bundle: Bundle, of_import: Callable[..., _Expected]) -> _Expected:
    """What `of_import` finds with the usual import, or with the model as it was given.

    The latter is for a model that the import refuses, if the bundle runs in ONNX Runtime alone (decision 104).
    """
    try:
        return of_import(unchanged=False)
    except (InvalidGraphError, ModelRunError, InternalError):
        if any(part.kind != "onnx" for variant in bundle.manifest.variants for part in variant.partitions):
            raise
        return of_import(unchanged=True)


def _of_import(
    bundle: Bundle,
    source: ModelSource,
    shapes: Mapping[str, tuple[int, ...]],
    given: Mapping[str, Any] | None,
    seed: int,
    reporter: Reporter,
    *,
    unchanged: bool,
) -> _Expected:
    from heterocc.compiler.checking.as_given import require_same_meaning
    from heterocc.compiler.checking.reference import Reference
    from heterocc.compiler.checking.vectors import find_vectors
    from heterocc.compiler.importer.pipeline import import_model
    from heterocc.compiler.importer.unchanged import import_unchanged

    with reporter.stage("importing the model"):
        # A bundle does not say whether its keys and values were stored in 16 bits; digests do.
        types = {spec.dtype for spec in bundle.manifest.model.inputs}
        for caches in (None, *sorted(types & {"float16", "bfloat16"})):
            found = replace(source, caches=caches)
            if unchanged:
                model = import_unchanged(found, shapes=shapes)
            else:
                model = import_model(found, shapes=shapes, only_numbers=bool(bundle.manifest.model.classes))
            if model.sha256 == bundle.manifest.model.sha256:
                break
    if model.sha256 != bundle.manifest.model.sha256:
        raise VerifyError(
            "the bundle was compiled from another model",
            where=str(source.path),
            hint="give the file that the bundle was compiled from"
            + ("" if source.weights else "; if release 0.2.0 compressed its weights, verify it without the model"),
        )
    with reporter.stage("running ONNX Runtime"):
        if given is None:
            vectors = find_vectors(model, None, seed)
            feed, outputs = dict(vectors.inputs), vectors.outputs
        else:
            own = {name: given[source] for name, source in _sources(model, model.graph.inputs) if source in given}
            feed = {**model.defaults, **own}
            outputs = Reference(model, model.graph.outputs).run(feed)
        require_same_meaning(model, feed, outputs)
        return model, feed, outputs


def _shapes(arrays: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items() if isinstance(array, np.ndarray)}


def _numbers(shape: Sequence[int | str | None]) -> tuple[int, ...]:
    return tuple(d for d in shape if isinstance(d, int))


def _sources(model: ImportedModel, names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, model.sources.get(name, name)) for name in names]
