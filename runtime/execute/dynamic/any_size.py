"""Native runs of contexts that are one call of CPU code for dynamic sizes."""

from __future__ import annotations

from collections.abc import Sequence

from heterocc.artifacts.manifest import ANY_SIZE, Partition, Range, Variant
from heterocc.runtime.execute.executable import Executable
from heterocc.runtime.execute.narrow import carried_as_is
from heterocc.runtime.native.cpu_runner import Run
from heterocc.runtime.native.cpu_sizes import DimensionSizes, SizeCondition, SizedInput, SizedValue, new_sized_runner


def run_of_any_size(
    variant: Variant, part: Partition, code: Executable, inputs: Sequence[str], outputs: Sequence[str]
) -> Run | None:
    """A function from a feed to new results, for one thread at a time; None if Python code has to make the runs.

    `part` is the only partition of the variant, and `inputs` and `outputs` are the model's names of the variant's. Code
    must take exactly the inputs, with the bytes that arrays have, and need no VM.
    """
    names = dict(zip(variant.inputs, inputs, strict=True))
    used = (*part.inputs, *variant.outputs)
    if sorted(part.inputs) != sorted(names) or not set(variant.outputs) <= set(part.outputs):
        return None
    dtypes = {value: pair for value in used if (pair := carried_as_is(variant.values[value].dtype)) is not None}
    if len(dtypes) < len(set(used)) or any(variant.values[value].shape is None for value in used):
        return None
    found = code.function_without_machine()
    if found is None:
        return None
    function, lengthened = found
    symbols: dict[str, int] = {}
    given = [
        SizedInput(SizedValue(names[value], *dtypes[value]), _dimensions(variant, value, symbols), part.alignment)
        for value in part.inputs
    ]
    wanted = [
        (SizedValue(name, *dtypes[value]), part.outputs.index(value))
        for name, value in zip(outputs, variant.outputs, strict=True)
    ]
    conditions = [SizeCondition(c.left, c.relation, c.right, symbols) for c in variant.conditions]
    return new_sized_runner(given, wanted, conditions, function, code.params, lengthened)


def _dimensions(variant: Variant, value: int, symbols: dict[str, int]) -> list[DimensionSizes]:
    """The sizes of an input's dimensions; `symbols` has the numbers of names, and is extended."""
    found = []
    for size in variant.values[value].shape or ():
        if isinstance(size, int):
            found.append(DimensionSizes(Range(min=size, max=size), None))
            continue
        symbol = None if size is None else symbols.setdefault(size, len(symbols))
        found.append(DimensionSizes(variant.bounds.get(size or "", ANY_SIZE), symbol))
    return found
