"""The work of a compile at one set of input shapes: place, lower and check its variants."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import container, is_narrow
from heterocc.artifacts.errors import Hint, InputError, MeaningError, ModelRunError, UnsupportedOpError
from heterocc.artifacts.files.writing import atomic_write
from heterocc.artifacts.text.names import file_name
from heterocc.artifacts.weight_file import Draft
from heterocc.compiler.build.ahead import LoweringAhead
from heterocc.compiler.build.build import Builder
from heterocc.compiler.build.pack import GoldenVectors, VariantParts, half_nodes, paired_nodes
from heterocc.compiler.build.tuning import remembered
from heterocc.compiler.checking.ahead import VectorsAhead
from heterocc.compiler.checking.check import Checker
from heterocc.compiler.checking.feed import feed_for
from heterocc.compiler.checking.memory import Memory
from heterocc.compiler.checking.vectors import Vectors, golden_vectors
from heterocc.compiler.importer.details import details_of
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.random_nodes import not_compared
from heterocc.compiler.importer.shapes.shape_rules import empty_at_fault
from heterocc.compiler.options import CompileOptions
from heterocc.compiler.pipeline.report import TimedPlan, VariantReport
from heterocc.compiler.pipeline.timing.measuring import Measurer, chosen_by_time
from heterocc.compiler.pipeline.timing.sizes import feeds_between, larger_feeds, smaller_feeds
from heterocc.compiler.pipeline.variant_build import BuiltVariant, VariantBuilder
from heterocc.compiler.pipeline.variants import MAIN, VariantSpec, all_devices, cpu_specs
from heterocc.compiler.placement.side_by_side import plans_beside
from heterocc.compiler.progress import Reporter, timed
from heterocc.compiler.sizes.planned import require_within
from heterocc.compiler.sizes.requests import ShapeRequest
from heterocc.passes.base import MEASURED, Pass, policy_pipeline
from heterocc.passes.explain.details import Details
from heterocc.passes.explain.explanation import Explanation
from heterocc.passes.explain.report import report_html
from heterocc.passes.graph import Value
from heterocc.passes.plan import Plan
from heterocc.passes.show.dot import dot_files
from heterocc.passes.show.printer import count
from heterocc.runtime.files.inputs import npz_shapes
from heterocc.runtime.select.ranking import GPU_BACKENDS

MOST_GOLDEN_BYTES = 1 << 25
"""The most bytes of golden vectors beside twice those of the weights: a small model must not make a large bundle."""


@dataclass
class Job:
    """A running command on the model file `where`, at the shapes of one request.

    `policy` is the name of the policy; `timed_variants` are those whose plan was chosen by timing, `passes_of` has
    their passes, and `timing` what was timed, in a sentence.
    `requested` are all variants that the user asked for, `specs` those with code of their own.
    `assumed` are notes on default bounds of dynamic dimensions, which apply if a GPU runs nodes.
    `known` are all outputs of ONNX Runtime for `feed`, and `outputs` those of the golden vectors.
    `ahead` may have begun to look for test vectors. `draft` is for the bundle that the first check writes.
    `memory` has what earlier compiles of the model computed with ONNX Runtime; None if there is no cache.
    `excluding` is the job from whose code the sizes are excluded that this one is for; None if it is not for such.
    `may_split` says that another job may take sizes at which this one's plan is slower, and `split` that it has to.
    `unseen` are outputs of the model that no check compares, with the reason; they are in every variant's notes.
    `unchecked` is the same for the report, or the reason why nothing is compared.
    """

    where: str
    options: CompileOptions
    reporter: Reporter
    model: ImportedModel
    specs: tuple[VariantSpec, ...]
    variants: VariantBuilder
    request: ShapeRequest
    further: bool = False
    policy: str = "merge"
    passes_of: dict[str, tuple[Pass, ...]] = field(default_factory=dict)
    timed_variants: set[str] = field(default_factory=set)
    assumed: tuple[Hint | str, ...] = ()
    unseen: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    placed: list[VariantReport] = field(default_factory=list)
    built: list[BuiltVariant] = field(default_factory=list)
    requested: tuple[VariantSpec, ...] = ()
    feed: Mapping[str, Any] | None = None
    outputs: Mapping[str, Any] | None = None
    known: Mapping[str, Any] | None = None
    builder: Builder | None = None
    checker: Checker | None = None
    ahead: VectorsAhead = field(default_factory=VectorsAhead)
    lowering_ahead: LoweringAhead | None = None
    draft: Draft | None = None
    memory: Memory | None = None
    inputs: Path | None = None
    excluding: Job | None = None
    may_split: bool = False
    split: bool = False
    timing: dict[str, str] = field(default_factory=dict)
    _placed_cpu: tuple[object, list[tuple[VariantSpec, Plan]], list[str]] | None = None

    def options_for(self, devices: tuple[str, ...]) -> CompileOptions:
        """The options for another model on some of the devices."""
        own = self.options
        return CompileOptions(devices, device_files=own.device_files, properties=own.properties)

    @property
    def shapes(self) -> dict[str, tuple[int | str | None, ...]]:
        """The shapes of the model's inputs, by their names in the model."""
        found = {}
        for name in self.model.graph.inputs:
            shape = self.model.input_shape(name)
            if shape is not None:
                found[self.model.sources.get(name, name)] = shape
        return found

    @property
    def is_idle(self) -> bool:
        """Whether it is for all other sizes of a model that has no dynamic dimension left."""
        return self.further and self.request.is_open and not self.model.dynamic_inputs

    @property
    def leaves_sizes(self) -> bool:
        """Whether sizes are excluded with which ONNX Runtime, which is in every list, might run the model."""
        return self.model.assumes and all(any(d.last_resort for d in spec.devices) for spec in self.specs)

    def place(self) -> None:
        """Place all requested variants. Raises UnsupportedOpError for a node that no device can run."""
        self.requested = self.specs
        with self.request.naming():
            self.placed = [
                VariantReport(spec.name, self.variants.place(spec), shapes=spec.shapes) for spec in self.specs
            ]
        for spec, report in zip(self.specs, self.placed, strict=True):
            self._note_dynamic(spec, report)
        if self._uses_gpu:
            for note in self.assumed:
                self.reporter.note(note)

    @property
    def _uses_gpu(self) -> bool:
        """Whether a GPU gets nodes of a placed variant."""
        gpus = {d.name for spec in self.specs for d in spec.devices if d.backend in GPU_BACKENDS}
        return any(gpus.intersection(report.plan.device_of.values()) for report in self.placed)

    def _note_dynamic(self, spec: VariantSpec, report: VariantReport) -> None:
        """Note the nodes that run in ONNX Runtime because another device does not take their dynamic dimensions."""
        last = {device.name for device in spec.devices if device.last_resort}
        refused = {
            node
            for device, found in self.variants.query.refusals.items()
            if device not in last
            for node, refusal in found.items()
            if refusal.rule == "shape"
        }
        nodes = sum(device in last and node in refused for node, device in report.plan.device_of.items())
        dynamic = self.model.dynamic_inputs
        if not dynamic or not nodes or len(last) == len(spec.devices):
            return
        shapes = [self.model.input_shape(name) or () for name in dynamic]
        names = list(dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, str)))
        what = f"dimension{'s' * (len(names) > 1)} {', '.join(names)}" if names else "dimensions without a name"
        stay = "stay" if len(names) != 1 else "stays"
        self.reporter.note(
            f"{what} {stay} dynamic: {count(nodes, 'node')} of variant {spec.name} run in ONNX Runtime; "
            + (
                Hint(f"dims={{'{names[0]}': …}} fixes it", f"--dim {names[0]}=… fixes it")
                if len(names) == 1
                else Hint("`dims` and `shapes` fix them", "--dim and --shape fix them")
            )
        )

    def keep(self, choices: Collection[str]) -> None:
        """Drop the variants whose choice of devices is not one of these."""
        kept = [number for number, spec in enumerate(self.specs) if (spec.choice or spec.name) in choices]
        self.specs = tuple(self.specs[number] for number in kept)
        self.placed = [self.placed[number] for number in kept]

    def prepare_check(self) -> None:
        """Run ONNX Runtime for the check and the golden vectors."""
        with self.request.naming():
            self.feed, self.outputs = self._vectors()

    def takes(self, path: Path) -> bool:
        """Whether the inputs in a file have the job's shapes."""
        shapes = npz_shapes(path)
        return all(shapes.get(name) == shape for name, shape in self.shapes.items())

    def build(self, expected: Sequence[tuple[VariantSpec, Plan]] = ()) -> None:
        """Lower and check the placed variants; the CPU-only variants that are `expected` are lowered beside a check."""
        devices = all_devices(spec.devices for spec in self.specs)
        self.builder = Builder(
            self.model, devices, self.reporter, measure=self.options.measure, ahead=self.lowering_ahead
        )
        self.builder.expect((plan, spec.devices) for spec, plan in expected)
        if self.feed is not None and self.options.check:
            self.checker = Checker(
                self.model,
                self.feed,
                self.reporter,
                known=self.known,
                memory=self.memory,
                draft=self.draft,
                before_running=self.builder.begin_expected,
                before_lowering=self.builder.finish,
            )
        for spec, variant in zip(self.specs, self.placed, strict=True):
            with self.request.naming():
                if self.policy == MEASURED:
                    self.built.append(self._measured(spec))
                elif self._is_timed(spec):
                    self.built.append(self._fastest(spec))
                else:
                    self.built.append(self.variants.build(spec, variant.plan, self.builder, self.checker))
            self._note(self.built[-1])

    def _measured(self, spec: VariantSpec) -> BuiltVariant:
        """The fastest plan of a variant; by estimates, with a note, if it cannot be timed on this machine."""
        absent = [d.name for d in spec.devices if not d.present]
        feed, reason = (None, f"{', '.join(absent)} is not on this machine") if absent else self._timing_feed()
        if reason:
            self.reporter.note(f"variant {spec.name} is not measured: {reason}; its plan is that of policy optimal")
            passes = policy_pipeline("optimal")
            assert self.builder is not None
            return self.variants.build(spec, self.variants.place(spec, passes), self.builder, self.checker, passes)
        return self._chosen(spec, feed, f"policy {MEASURED}")

    def _is_timed(self, spec: VariantSpec) -> bool:
        """Whether the plans of a variant are timed though no policy asks for that: see `chosen_by_time`."""
        plain = self.policy == "merge" and self.options.passes is None and self.options.pass_limit is None
        return plain and self.options.measure and chosen_by_time(self.model, spec.devices)

    def _fastest(self, spec: VariantSpec) -> BuiltVariant:
        """The fastest of the plan of `merge`, the CPU alone and ONNX Runtime alone; that of `merge` without inputs."""
        assert self.builder is not None
        feed, reason = self._timing_feed()
        if reason:
            return self.variants.build(spec, self.variants.place(spec), self.builder, self.checker)
        how: dict[str, Any] = {}
        if self.inputs is None and feed is not None:
            bounds, seed = self.request.bounds, self.options.seed
            how["smaller"] = partial(smaller_feeds, self.model, feed, bounds, seed)
            how["larger"] = partial(larger_feeds, self.model, feed, bounds, seed)
            how["between"] = lambda larger: feeds_between(self.model, feed, larger, seed)
            how["splits"] = self.may_split and len(self.specs) == 1
        return self._chosen(spec, feed, "timed", policies=("merge",), brief=True, **how)

    def _timing_feed(self) -> tuple[Mapping[str, Any] | None, str]:
        """Inputs with which plans are timed, None for seeded ones of fixed shapes; or the reason why there are none."""
        if self.feed is not None or not self.model.dynamic_inputs:
            return self.feed, ""
        try:
            return feed_for(self.model, None, self.options.seed), ""
        except InputError as error:
            return None, error.message

    def _chosen(self, spec: VariantSpec, feed: Mapping[str, Any] | None, what: str, **how: Any) -> BuiltVariant:
        """The fastest of the plans that are timed, with a note of `what` was done."""
        assert self.builder is not None
        with timed(self.variants.seconds, "measure"):
            choice = Measurer(self.variants, self.builder, self.checker, feed, **how).choose(spec)
        some = any(plan.seconds is not None for plan in choice.timed)
        if some or self.policy == MEASURED:
            name = "" if spec.name == MAIN else f" for variant {spec.name}"
            at = choice.at if some else ""
            by = " by an earlier compile" if choice.remembered else ""
            plans = ", ".join(plan.text() for plan in choice.timed)
            self.reporter.note(f"{what}{name}{at}{by}: {plans}")
            self.timing[spec.name] = f"{what}{at}: {plans}"
            self.passes_of[spec.name] = choice.passes
            self.timed_variants.add(spec.name)
        self.split = bool(choice.bounds)
        bounds = _common(spec.bounds, choice.bounds)
        return replace(choice.variant, spec=replace(choice.variant.spec, bounds=bounds), timed=choice.timed)

    def take_all_sizes(self) -> None:
        """Take the sizes at which ONNX Runtime was faster, too: it is not there."""
        self.split = False
        bounds = self.specs[0].bounds
        self.built = [replace(variant, spec=replace(variant.spec, bounds=bounds)) for variant in self.built]

    def build_cpu(self, specs: Sequence[tuple[VariantSpec, Plan]]) -> None:
        """Lower and check CPU-only variants beside the others; one that fails is left out, with a note."""
        assert self.builder is not None
        for spec, plan in specs:
            try:
                self.built.append(self.variants.build(spec, plan, self.builder, self.checker))
            except UnsupportedOpError as error:
                self.reporter.note(f"no CPU variant{self.request.at}: {error.message}")
            else:
                self._note(self.built[-1])

    def take_place_of(self, other: Job) -> None:
        """Give the built variants the names of those of a job with the same choices of devices, and its times."""
        self.further, self.request = other.further, replace(self.request, label=other.request.label)
        self.passes_of, self.timed_variants, self.timing = other.passes_of, other.timed_variants, other.timing
        self.built = [
            replace(own, spec=replace(own.spec, name=old.spec.name, choice=old.spec.choice), timed=old.timed)
            for own, old in zip(self.built, other.built, strict=True)
        ]

    def add_larger(self) -> None:
        """Add a CPU-only variant, if there is one, to each with default bounds, for sizes beyond these."""
        names = set(self.model.planned) - set(self.request.bounds)
        bounded = [variant for variant in self.built if variant.uses_gpu] if names else []
        cpu = next((variant for variant in self.built if not variant.uses_gpu), None)
        for spec in [variant.spec for variant in bounded]:
            if cpu is None:
                self.reporter.note(
                    f"sizes beyond these bounds are errors in variant {spec.name}, without a CPU variant"
                )
                continue
            larger = replace(cpu.spec, name=f"{spec.name}@cpu", choice=spec.choice or spec.name, automatic=True)
            self.built.append(replace(cpu, spec=larger))
            self.reporter.note(f"sizes beyond these bounds run on the CPU in variant {spec.name}")

    def place_cpu(self, used: Sequence[Collection[str]], *, expected: bool = False) -> list[tuple[VariantSpec, Plan]]:
        """The placed CPU-only variants; none if disabled or, with a note, if they cannot be placed.

        `used` are the devices of each requested variant, for all shapes. Of variants that are only `expected` nothing
        is noted.
        """
        if not self.options.cpu_variant or self.request.is_rest:
            return []
        state = tuple(map(frozenset, used)), {device: set(nodes) for device, nodes in self.variants.wrong.items()}
        if self._placed_cpu is None or self._placed_cpu[0] != state:
            self._placed_cpu = state, *self._place_cpu(used)
        _, found, notes = self._placed_cpu
        for note in () if expected else notes:
            self.reporter.note(note)
        return found

    def _place_cpu(self, used: Sequence[Collection[str]]) -> tuple[list[tuple[VariantSpec, Plan]], list[str]]:
        """The placed CPU-only variants, and notes on them."""
        specs, why = cpu_specs(tuple(replace(spec, name=spec.choice or spec.name) for spec in self.requested), used)
        notes = [] if why is None else [why]
        try:
            return [(spec, self.variants.place(spec)) for spec in map(self.at_shapes, specs)], notes
        except UnsupportedOpError as error:
            return [], [*notes, f"no CPU variant{self.request.at}: {error.message}"]

    def at_shapes(self, spec: VariantSpec) -> VariantSpec:
        """A spec at the job's shapes, with a name of its own if they are not the bundle's first."""
        names = {dim for shape in self.shapes.values() for dim in shape if isinstance(dim, str)}
        bounds = {name: found for name, found in self.request.bounds.items() if name in names}
        spec = replace(spec, shapes=self.shapes, bounds=bounds)
        return replace(spec, name=self.request.named(spec.name), choice=spec.name) if self.further else spec

    def golden(self, parts: Sequence[VariantParts]) -> GoldenVectors | None:
        """The golden vectors for the job's shapes, and its packed variants."""
        if self.feed is None or self.outputs is None:
            return None
        arrays = [a for a in (*self.feed.values(), *self.outputs.values()) if isinstance(a, np.ndarray)]
        most = MOST_GOLDEN_BYTES + 2 * sum(array.nbytes for array in self.model.weights.values())
        if sum(array.nbytes for array in arrays) > most:
            self.reporter.note(f"the bundle has no golden vectors: they would have more than {most} bytes")
            return None
        half, paired = half_nodes(parts), paired_nodes(parts)
        return golden_vectors(self.model, self.options.seed, self.feed, self.outputs, half, paired)

    def _vectors(self) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """Inputs for the check, and ONNX Runtime's outputs for the golden vectors.

        Both are None, with a warning, if ONNX Runtime cannot run the model; the outputs are None if an input cannot be
        stored. Raises InputError for any failure with given inputs, and ModelRunError (HC115) for a model that ONNX
        Runtime rejects, unless the check is disabled.
        """
        try:
            with self.reporter.stage("running ONNX Runtime"), timed(self.variants.seconds, "reference"):
                reads = not self.options.recheck
                found, self.memory = self.ahead.vectors(
                    self.model, self.inputs, self.options.seed, reads=reads, check=self.options.check
                )
        except MeaningError as error:
            error.where = self.where
            raise
        except InputError as error:
            blamed = empty_at_fault(self.request.shapes, error, self.request.dims)
            if blamed is not None:
                raise blamed from error
            guessed = self.inputs is None and any(container(v.dtype) for v in self._inputs())
            refused = isinstance(error, ModelRunError) and not guessed  # sizes in sequences are guesses
            if refused:
                error.where, error.hint = self.where, self._refused_hint()
            if self.inputs is not None or (refused and self.options.check):
                raise
            self.reporter.warn(f"no partition is checked, and the bundle has no golden vectors: {error.message}")
            self.unchecked.append(f"all: {error.message}")
            return None, None
        if self._uses_gpu:
            require_within(self.model, found.inputs)
        self._report_unseen(found)
        if found.unlike is not None:
            self.reporter.note(f"the import is not compared with the model as it was given: {found.unlike}")
        self.known = found.outputs
        tensors = {n: v for n, v in found.outputs.items() if isinstance(v, np.ndarray) and v.dtype != object}
        golden = {n: v for n, v in tensors.items() if n not in found.random and not is_narrow(v)}
        for name, value in found.inputs.items():
            if not isinstance(value, np.ndarray):
                source = self.model.sources.get(name, name)
                self.reporter.note(f"the bundle has no golden vectors: .npy cannot store the input '{source}'")
                return found.inputs, None
        narrow = [self.model.sources.get(n, n) for n, v in found.inputs.items() if is_narrow(v)]
        if narrow:
            self.reporter.note(f"the bundle has no golden vectors: .npy cannot store the input '{narrow[0]}'")
            return found.inputs, None
        return found.inputs, golden

    def _inputs(self) -> list[Value]:
        return [self.model.graph.values[name] for name in self.model.graph.inputs]

    def _refused_hint(self) -> str:
        inputs = Hint("inputs that the model accepts (`inputs`), ", "inputs that the model accepts with --inputs, ")
        shapes = Hint("other `shapes` or `dims`, ", "another --shape or --dim, ")
        unchecked = Hint("or check=False to compile", "or --no-check to compile") + " without running the model"
        if self.inputs is not None:
            inputs = Hint("other `inputs`, ", "other --inputs, ")
        hint: str = "give "
        for part in (inputs, shapes if self.request.shapes or self.request.dims else "", unchecked):
            hint = hint + part
        return hint

    def _report_unseen(self, found: Vectors) -> None:
        """Report outputs that are not compared, and outputs whose values the check cannot judge."""
        sources = self.model.sources
        for name, reason in found.random.items():
            self.unseen.append(not_compared(sources.get(name, name), reason))
            self.reporter.note(self.unseen[-1])
        given = self.inputs is not None
        for name, reason in found.blind.items():
            on = "the given inputs" if given else "every seeded input that was tried"
            self.unseen.append(f"the check cannot judge output '{sources.get(name, name)}': {reason} on {on}")
            hint = Hint("; give real inputs (`inputs`)", "; give real inputs with --inputs")
            self.reporter.warn(self.unseen[-1] + ("" if given else hint))
        self.unchecked += self.unseen

    def _note(self, variant: BuiltVariant) -> None:
        """Note a variant's unchecked partitions, costs of half precision, missing binaries and tuned kernels."""
        report = variant.report
        for text in report.check_notes:
            self.reporter.note(text)
        for piece in variant.pieces:
            device = piece.job.device
            if device.keeps_binaries and not piece.binaries:
                self.reporter.note(
                    f"{device.name}.binaries=on has no effect on {piece.job.name}: its kernels did not run here, so "
                    "the driver compiles them when the bundle is first loaded"
                )
        for part in report.tuned:
            if part.requested or part.changed:
                self.reporter.note(part.sentence() + remembered([part]))

    def explained(self, plan: Plan, name: str = MAIN, timed: Sequence[TimedPlan] = ()) -> Explanation:
        """The plan of a variant with its reasons, and those that were timed."""
        ranked = sorted(timed, key=lambda p: not p.kept)
        measured = tuple((n, p.seconds) for p in ranked if p.seconds is not None for n in (p.name, *p.also))
        policy = MEASURED if name in self.timed_variants else self.policy
        passes = self.passes_of.get(name, self.variants.passes)
        return Explanation(plan, passes, policy, (), measured, timing=self.timing.get(name, ""))

    @cached_property
    def details(self) -> Details:
        """What reports show of the model beside its graph."""
        return details_of(self.model)

    def recorded(self, plan: Plan, name: str = MAIN, timed: Sequence[TimedPlan] = ()) -> Explanation:
        """As `explained`, with the details that a report shows."""
        return replace(self.explained(plan, name, timed), details=self.details)

    def note_placement(self, plans: Sequence[Plan]) -> None:
        """Note devices that get no node, with the reason, and plans that are slower than the CPU alone."""
        for note in dict.fromkeys(note for plan in plans for note in self.explained(plan).notes):
            self.reporter.note(note)

    def write_report(self, plan: Plan, timed: Sequence[TimedPlan] = ()) -> None:
        """Write the page of `--report` on the main variant, if given."""
        if self.options.report is not None:
            with self.reporter.stage("explaining"):
                found = self.recorded(plan, MAIN, timed)
                found = replace(found, others=plans_beside(plan, found.policy, dict(found.measured)))
                atomic_write(self.options.report, report_html(found))

    def write_dots(self, placed: Sequence[VariantReport]) -> None:
        """Write two graphs per variant to the folder of `--dot`, if given; further variants have subfolders."""
        if self.options.dot_dir is None:
            return
        for variant in placed:
            for name, text in graphs(variant):
                atomic_write(self.options.dot_dir / name, text)


def _common(
    bounds: Mapping[str, tuple[int, int | None]], others: Mapping[str, tuple[int, int | None]]
) -> dict[str, tuple[int, int | None]]:
    """The sizes within both bounds."""
    found = dict(bounds)
    for name, (least, most) in others.items():
        low, high = found.get(name, (0, None))
        found[name] = max(low, least), min((n for n in (high, most) if n is not None), default=None)
    return found


def graphs(variant: VariantReport) -> list[tuple[str, str]]:
    """Names and texts of a variant's graphs; names of variants other than the main one begin with a folder."""
    folder = "" if variant.name == MAIN else f"{file_name(variant.name)}/"
    return [(f"{folder}{name}", text) for name, text in dot_files(variant.plan).items()]
