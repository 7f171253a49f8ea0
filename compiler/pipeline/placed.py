"""The third step of a compile: decide which device runs which node, in every variant."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from heterocc.artifacts.errors import Hint, UnsupportedOpError
from heterocc.artifacts.files.writing import atomic_write
from heterocc.artifacts.text.names import file_name
from heterocc.compiler.pipeline.queried import Queried
from heterocc.compiler.pipeline.report import PlacedVariant
from heterocc.compiler.pipeline.variants import MAIN, cpu_specs
from heterocc.passes.show.dot import dot_files
from heterocc.passes.show.printer import count
from heterocc.runtime.machine.ranking import GPU_BACKENDS


@dataclass(frozen=True, slots=True)
class CpuVariants:
    """The CPU-only variants beside others, or notes on why there are none; `since` is what they depend on."""

    placed: tuple[PlacedVariant, ...] = ()
    notes: tuple[str, ...] = ()
    since: object = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Placed(Queried):
    """The plans of the variants: `placed` are those with code of their own, of all that the user asked for (`specs`).

    `likely` are CPU-only variants that are expected beside them, and lowered while something else is checked.
    """

    placed: tuple[PlacedVariant, ...]
    likely: CpuVariants | None = None

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU gets nodes of a variant."""
        return any(
            device.backend in GPU_BACKENDS and device.name in set(variant.plan.device_of.values())
            for variant in self.placed
            for device in variant.spec.devices
        )

    @property
    def reports(self) -> Sequence[PlacedVariant]:
        """The variants as they are known so far."""
        return self.placed

    def keeping(self, choices: Collection[str]) -> Placed:
        """The same without the variants whose choice of devices is not one of these."""
        return replace(self, placed=tuple(v for v in self.placed if (v.spec.choice or v.spec.name) in choices))

    def cpu_variants(self, used: Sequence[Collection[str]]) -> CpuVariants:
        """The CPU-only variants beside those that use these devices, each for all shapes.

        Those that were likely are not placed again unless devices or failures have changed since then.
        """
        if not self.request.options.cpu_variant or self.shapes.is_rest:
            return CpuVariants()
        since = tuple(map(frozenset, used)), {device: set(nodes) for device, nodes in self.wrong.items()}
        if self.likely is not None and self.likely.since == since:
            return self.likely
        specs, why = cpu_specs(tuple(replace(spec, name=spec.choice or spec.name) for spec in self.specs), used)
        notes = () if why is None else (why,)
        try:
            placed = tuple(PlacedVariant(spec, self.place(spec)) for spec in map(self.at_shapes, specs))
        except UnsupportedOpError as error:
            return CpuVariants((), (*notes, f"no CPU variant{self.shapes.at}: {error.message}"), since)
        return CpuVariants(placed, notes, since)


def place(queried: Queried) -> Placed:
    """Place all requested variants. Raises UnsupportedOpError for a node that no device can run."""
    with queried.shapes.naming():
        variants = tuple(PlacedVariant(spec, queried.place(spec)) for spec in queried.specs)
    for variant in variants:
        _note_dynamic(queried, variant)
    placed = queried.then(Placed, placed=variants)
    if placed.uses_gpu:
        for note in queried.assumed:
            queried.reporter.note(note)
    return placed


def _note_dynamic(queried: Queried, variant: PlacedVariant) -> None:
    """Note the nodes that run in ONNX Runtime because another device does not take their dynamic dimensions."""
    model, devices = queried.model, variant.spec.devices
    last = {device.name for device in devices if device.last_resort}
    refused = {
        node
        for device, found in queried.query.refusals.items()
        if device not in last
        for node, refusal in found.items()
        if refusal.rule == "shape"
    }
    nodes = sum(device in last and node in refused for node, device in variant.plan.device_of.items())
    dynamic = model.dynamic_inputs
    if not dynamic or not nodes or len(last) == len(devices):
        return
    shapes = [model.input_shape(name) or () for name in dynamic]
    names = list(dict.fromkeys(dim for shape in shapes for dim in shape if isinstance(dim, str)))
    what = f"dimension{'s' * (len(names) > 1)} {', '.join(names)}" if names else "dimensions without a name"
    stay = "stay" if len(names) != 1 else "stays"
    queried.reporter.note(
        f"{what} {stay} dynamic: {count(nodes, 'node')} of variant {variant.spec.name} run in ONNX Runtime; "
        + (
            Hint(f"dims={{'{names[0]}': …}} fixes it", f"--dim {names[0]}=… fixes it")
            if len(names) == 1
            else Hint("`dims` and `shapes` fix them", "--dim and --shape fix them")
        )
    )


def graphs(variant: PlacedVariant) -> list[tuple[str, str]]:
    """Names and texts of a variant's graphs; names of variants other than the main one begin with a folder."""
    folder = "" if variant.name == MAIN else f"{file_name(variant.name)}/"
    return [(f"{folder}{name}", text) for name, text in dot_files(variant.plan).items()]


def write_graphs(placed: Placed) -> None:
    """Write two graphs per variant to the folder of `--dot`, if given; further variants have subfolders."""
    folder = placed.request.options.dot_dir
    if folder is not None:
        for name, text in (graph for variant in placed.reports for graph in graphs(variant)):
            atomic_write(folder / name, text)
