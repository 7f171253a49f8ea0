"""The steps of a program: straight code, sizes that become known, branches and loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from heterocc.compiler.importer.model import ImportedModel


@dataclass(slots=True)
class Code:
    """Nodes that are compiled as one straight function of `inputs` and the sizes that some Measures read."""

    nodes: list[str] = field(default_factory=list)
    inputs: tuple[str, ...] = ()
    sizes: tuple[Measure, ...] = ()
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """The tensor `value` holds the sizes that are called `names`."""

    value: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Require:
    """Nothing reads `value`: the code that computes it ends a run that cannot go on."""

    value: str


@dataclass(frozen=True, slots=True)
class Text:
    """A text as an argument of a function."""

    text: str


Argument = str | int | tuple[int, ...] | Text | None
"""A value by its name, a number, the sizes of a shape (-1 is any), a text, or nothing."""


@dataclass(frozen=True, slots=True)
class Invoke:
    """Call a function of the runtime; `result` is the value that it returns, None if it is not read."""

    function: str
    arguments: tuple[Argument, ...]
    result: str | None

    @property
    def values(self) -> tuple[str, ...]:
        """The values among the arguments."""
        return tuple(a for a in self.arguments if isinstance(a, str))


@dataclass(frozen=True, slots=True)
class Copy:
    """Values become other ones, all at once; `pairs` has each result with its value."""

    pairs: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Choose:
    """Run `then` or `otherwise`, which set the same values."""

    condition: str
    then: list[Step]
    otherwise: list[Step]


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """Write the value `row` to place `index` of the first axis of the tensor `target`, counted from its end or not."""

    row: str
    index: str
    target: str
    from_end: bool = False


@dataclass(frozen=True, slots=True)
class Again:
    """Run `body` as long as `going` is true, or a number other than 0."""

    going: str
    body: list[Step]


Step = Code | Measure | Require | Invoke | Copy | Choose | Store | Again


@dataclass(frozen=True, slots=True)
class Program:
    """The steps of a partition. `model` has the nodes of all its straight code.

    `outputs` are the values that the partition returns. `last` is straight code that writes them into the caller's
    tensors; None if the partition returns new ones. `has_containers` says whether it has sequences or
    optional values. `owners` has the graph node from which each node was made.
    """

    model: ImportedModel
    inputs: tuple[str, ...]
    steps: list[Step]
    outputs: tuple[str, ...]
    last: Code | None
    owners: dict[str, str]
    has_containers: bool = False


def inner(step: Step) -> Sequence[list[Step]]:
    """The steps of the branches or the body inside a step."""
    match step:
        case Choose():
            return step.then, step.otherwise
        case Again():
            return (step.body,)
    return ()


def walk(steps: Sequence[Step]) -> Iterator[Step]:
    """All steps, those inside others after these."""
    for step in steps:
        yield step
        for part in inner(step):
            yield from walk(part)


def drop_idle(steps: list[Step]) -> None:
    """Remove straight code of which nothing reads a result."""
    steps[:] = [step for step in steps if not isinstance(step, Code) or step.outputs]
    for step in steps:
        for part in inner(step):
            drop_idle(part)


def other_reads(steps: Sequence[Step]) -> Iterator[str]:
    """The values that all steps but straight code read."""
    for step in walk(steps):
        match step:
            case Measure() | Require():
                yield step.value
            case Invoke():
                yield from step.values
            case Copy():
                yield from (value for _, value in step.pairs)
            case Choose():
                yield step.condition
            case Store():
                yield from (step.row, step.index, step.target)
            case Again():
                yield step.going


def set_values(steps: Sequence[Step]) -> Iterator[str]:
    """The values that branches, loops and functions of the runtime set, which no straight code writes."""
    for step in walk(steps):
        match step:
            case Invoke(result=str(result)):
                yield result
            case Copy():
                yield from (result for result, _ in step.pairs)
