"""Dynamic dimensions and variants for several shapes in a manifest (FORMAT.md, "Dynamic dimensions")."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from heterocc.artifacts.dtypes import CARRIED
from heterocc.artifacts.manifest import (
    ARRANGED,
    CONDITIONED,
    OPERATORS,
    STEPPED,
    Condition,
    Expression,
    Manifest,
    TensorSpec,
    Variant,
)


def is_static(value: TensorSpec) -> bool:
    """Whether every dimension is a number."""
    return value.shape is not None and all(isinstance(d, int) for d in value.shape)


def is_dynamic(manifest: Manifest) -> bool:
    """Whether a manifest needs version 3: named dimensions, several shapes, compiled code with dynamic shapes or dtypes
    that numpy lacks."""
    if manifest.goldens or any(v.bounds or v.conditions or v.shapes_of is not None for v in manifest.all_variants):
        return True
    if any(isinstance(d, str) for spec in _specs(manifest) for d in spec.shape or ()):
        return True
    return any(
        not is_static(variant.values[index]) or variant.values[index].dtype in CARRIED
        for variant in manifest.variants
        for part in variant.partitions
        if part.kind == "tvm"
        for index in (*part.inputs, *part.outputs)
    )


def check_dynamic(manifest: Manifest) -> str | None:
    """The reason why a manifest with valid indices breaks the rules of dynamic dimensions; None if it follows them."""
    if manifest.version.major <= ARRANGED[0]:
        if is_dynamic(manifest):
            return (
                "it has dynamic dimensions, several shapes or narrow dtypes, which the bundle's version does not allow"
            )
        return None
    earlier: set[str] = set()
    for variant in manifest.all_variants:
        where = f"variant {variant.name[:80]!r}"
        if variant.shapes_of is None:
            earlier.add(variant.name)
        elif variant.shapes_of not in earlier:
            return f"{where} is for other shapes of {variant.shapes_of[:80]!r}, which is not an earlier variant"
        names = {d for value in variant.values for d in value.shape or () if isinstance(d, str)}
        for name, bounds in variant.bounds.items():
            if name not in names:
                return f"{where} has bounds for {name[:80]!r}, which is not a dimension of it"
            if bounds.step > 1 and manifest.version.major < STEPPED[0]:
                return f"{where} has a step for {name[:80]!r}, which the bundle's version does not allow"
            if bounds.is_empty:
                return f"the bounds of {name[:80]!r} in {where} are {bounds.min} and {bounds.max}"
        if variant.conditions and manifest.version.major < CONDITIONED[0]:
            return f"{where} has conditions, which the bundle's version does not allow"
        given = {d for index in variant.inputs for d in variant.values[index].shape or () if isinstance(d, str)}
        if not all(is_whole(side, given) for condition in variant.conditions for side in _sides(condition)):
            return f"{where} has a condition that is not an expression of its inputs' dimensions"
    for choice in manifest.choices:
        seen = set()
        for variant in manifest.with_shapes(choice):
            limits = frozenset((name, bounds.min, bounds.max) for name, bounds in variant.bounds.items())
            shapes = input_shapes(variant), limits
            if shapes in seen:
                return f"variants for {choice.name[:80]!r} have the same shapes of inputs"
            seen.add(shapes)
    return None


def _sides(condition: Condition) -> tuple[Expression, Expression]:
    return condition.left, condition.right


def is_whole(expression: Expression, names: Collection[str]) -> bool:
    """Whether an expression has one value, and is one of these dimensions."""
    depth = 0
    for token in expression:
        if isinstance(token, str) and not token.startswith("$"):
            if token not in OPERATORS or depth < 2:
                return False
            depth -= 1
        elif isinstance(token, str) and token[1:] not in names:
            return False
        else:
            depth += 1
    return depth == 1


def input_shapes(variant: Variant) -> tuple[tuple[int | str | None, ...] | None, ...]:
    """The shapes of a variant's inputs, in the model's order."""
    return tuple(variant.values[index].shape for index in variant.inputs)


def _specs(manifest: Manifest) -> Iterator[TensorSpec]:
    yield from manifest.model.inputs
    yield from manifest.model.outputs
    for variant in manifest.all_variants:
        yield from variant.values
