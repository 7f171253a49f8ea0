"""The choice of a kernel's form: every form states its time, and the one with the least is written.

A form is a file with a function that proposes candidates, and a line of FORMS in `generate.py`. None knows another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeAlias

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import attempt, restore, with_guards
from heterocc.compiler.lower.kernels.expressions import parts_of

MOST_STORES = 6000
"""The limit on stores in the code of a kernel: LLVM takes 12 seconds and a gigabyte for 14,000."""

Packing: TypeAlias = Any
"""The layout of a weight, of a class that `layouts.py` knows: with `argument`, `key`, `size` and `apply`."""

Done = tuple[tirx.PrimFunc, tuple[Packing, ...]]
"""A kernel's code, and the packings of the weights among its arguments."""


class Writer(Protocol):
    """A generator of one form of a kernel, with its tiles."""

    @property
    def packings(self) -> Sequence[Packing]:
        """The layouts in which it reads the weights."""

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A form in which a kernel can be written.

    `form` is its name in the corrections of cores, `cycles` the time by its model, `detail` what tells it from others
    of the form. `writer` chooses its tiles; it is called for the candidate that is written. `dtype` is the type of
    packed weights, if it is not float32. `guards` are what its model assumes of sizes that are known only at run time.
    """

    form: str
    cycles: float
    writer: Callable[[Isa], Writer]
    detail: str = ""
    dtype: str | None = None
    guards: tuple[tirx.Expr, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"{self.form} {self.detail}".rstrip()


Form = Callable[[Kernel, Isa], Iterable[Candidate]]
"""Proposes the candidates of a form, none for a kernel of another kind."""


def written_best(kernel: Kernel, forms: Iterable[Form], isa: Isa) -> Done | None:
    """The kernel in the form with the least time, or in the next one if that needs numbers in place of sizes, or has
    so much code that it takes many seconds to compile.

    None if no form proposes a candidate.
    """
    long: list[tuple[int, Done]] = []
    for candidate in candidates(kernel, forms, isa):
        done = attempt(partial(_written, kernel, candidate, isa))
        if done is None:
            continue
        length = number_of_stores(done[0])
        if length <= MOST_STORES:
            return done
        long.append((length, done))
    return min(long, key=lambda one: one[0])[1] if long else None


def number_of_stores(function: tirx.PrimFunc) -> int:
    """The number of stores in a kernel's code, by which its length is judged."""
    return len(parts_of(function.body, tirx.BufferStore))


def candidates(kernel: Kernel, forms: Iterable[Form], isa: Isa) -> list[Candidate]:
    """All that the forms propose, the fastest by its model first."""
    return [candidate for _, candidate in sorted(_judged(kernel, forms, isa), key=lambda one: one[0])]


def _judged(kernel: Kernel, forms: Iterable[Form], isa: Isa) -> Iterator[tuple[float, Candidate]]:
    """All candidates with their corrected times, and the guards that their models need."""
    for form in forms:
        proposed, guards = with_guards(partial(_proposed, form, kernel, isa))
        for candidate in proposed or ():
            yield candidate.cycles * isa.core.corrections.get(candidate.form, 1.0), replace(candidate, guards=guards)


def _proposed(form: Form, kernel: Kernel, isa: Isa) -> list[Candidate]:
    return list(form(kernel, isa))


def _written(kernel: Kernel, candidate: Candidate, isa: Isa) -> Done:
    restore(candidate.guards)
    writer = candidate.writer(isa)
    packings = tuple(writer.packings)
    packed = {p.argument: p.size for p in packings}
    return emit.written(kernel, packed, writer.write, candidate.dtype), packings
