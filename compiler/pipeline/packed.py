"""The last step of a compile: pack the variants of all sizes into one bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from heterocc.artifacts.files.writing import make_folder
from heterocc.artifacts.signing.keys import SigningKey
from heterocc.artifacts.weights.weight_file import Draft
from heterocc.compiler.api.progress import timed
from heterocc.compiler.build.pack import VariantParts, pack, weights_of
from heterocc.compiler.pipeline.checked import Checked
from heterocc.compiler.pipeline.explained import recorded
from heterocc.compiler.pipeline.fallback import AS_GIVEN
from heterocc.compiler.pipeline.placed import graphs
from heterocc.compiler.pipeline.repair import BuiltVariant
from heterocc.passes.explain.record import write_record

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Packed:
    """A bundle: its path, its bytes, and the names of its variants."""

    path: Path
    size: int
    variants: tuple[str, ...]


def write_bundle(all_sizes: Sequence[Checked], draft: Draft, replacing: Checked | None = None) -> Packed:
    """Write the bundle of the variants for all sizes, of which the first are the main ones.

    The first variant of `replacing` is for runs that replace initializers.
    """
    first, options = all_sizes[0], all_sizes[0].request.options
    variants = in_order([checked.variants for checked in all_sizes])
    owner = {id(variant): checked for checked in all_sizes for variant in checked.variants}
    parts = _with_choices([_parts(owner[id(variant)], variant) for variant in variants])
    packing = first.reporter.stage("packing weights", weights_of(parts))
    with packing as progress, timed(first.request.seconds, "pack"):
        asked = [variant.report for variant in variants if not variant.spec.automatic]
        texts = {f"graphs/{name}": text for report in asked for name, text in graphs(report)}
        target = draft.target
        make_folder(target.parent)
        general = any(checked.shapes.is_general for checked in all_sizes)
        shown = [checked for checked in all_sizes if not (checked.shapes.is_rest and general)]
        vectors = [checked.golden([p for p in parts if p.model is checked.model]) for checked in shown]
        goldens = [found for found in vectors if found is not None]
        key = options.sign if isinstance(options.sign, SigningKey) else None
        others = None if replacing is None else _parts(replacing, replacing.variants[0])
        pack(
            target,
            first.model,
            parts,
            goldens=goldens,
            replacing=others,
            texts=texts,
            progress=progress,
            key=key,
            draft=draft,
        )
    return Packed(target, target.stat().st_size, tuple(variant.spec.name for variant in variants))


def in_order(lists: Sequence[Sequence[T]]) -> list[T]:
    """The variants in the bundle's order: those of one choice of devices together, in the order of the sizes."""
    return [variant for same in zip_longest(*lists) for variant in same if variant is not None]


def _parts(checked: Checked, variant: BuiltVariant) -> VariantParts:
    """The contents of a variant, with the record of its placement."""
    spec, shapes = variant.spec, checked.shapes
    rest = shapes.is_rest and spec.name == shapes.named(spec.choice or "")
    about = [f"for sizes that variant {spec.choice} excludes"] if rest else []
    if shapes.replaces:
        about = ["for runs that replace initializers"]
    if shapes.unchanged and not shapes.is_rest:
        about = [f"{AS_GIVEN}: {shapes.unchanged}"]
    reasons = checked.unchecked if checked.vectors is None and checked.request.options.check else ()
    parts = variant.parts(checked.model, [*about, *checked.unseen], reasons)
    return replace(parts, record=write_record(recorded(checked, variant)))


def _with_choices(parts: Sequence[VariantParts]) -> list[VariantParts]:
    """The parts, of which the first of each choice of devices has no `choice`, and the others its name."""
    first: dict[str, str] = {}
    found = []
    for part in parts:
        choice = part.choice or part.name
        leader = first.setdefault(choice, part.name)
        found.append(replace(part, choice=None if leader == part.name else leader))
    return found
