"""The one function of a shader: instructions in structured blocks, equal pure ones written once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from heterocc.compiler.lower.vulkan.spirv import Decoration, Module, Op, Storage, instruction

UNROLL = 1
"""Loop control: the driver should write the loop out."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A variable of one scalar."""

    body: Body
    type_: int
    pointer: int

    def load(self) -> int:
        """Its value now."""
        return self.body.fresh(Op.LOAD, self.type_, self.pointer)

    def store(self, value: int) -> None:
        """Give it a value."""
        self.body.effect(Op.STORE, self.pointer, value)


class Body:
    """The blocks of the function; the current one takes the next instruction.

    A pure instruction is written once per set of blocks that its first place dominates: that is the block itself and
    what is nested in it.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self._entry = module.new_id()
        self._variables: list[int] = []
        self._words: list[int] = []
        self._block = self._entry
        self.constants: dict[tuple[object, str | int], int] = {}
        self._known: list[dict[tuple[int, ...], int]] = [{}]

    def words(self) -> list[int]:
        """All blocks; closes the last one."""
        return [
            *instruction(Op.LABEL, (self._entry,)),
            *self._variables,
            *self._words,
            *instruction(Op.RETURN, ()),
        ]

    def variable(self, pointer: int) -> int:
        """A variable of the invocation's own."""
        result = self.module.new_id()
        self._variables += instruction(Op.VARIABLE, (pointer, result, Storage.FUNCTION))
        return result

    def cell(self, type_: int) -> Cell:
        """A variable for one scalar, without a value yet."""
        return Cell(self, type_, self.variable(self.module.type(Op.TYPE_POINTER, Storage.FUNCTION, type_)))

    def pure(self, op: Op, type_: int, *operands: int, exact: bool = False) -> int:
        """The result of an instruction that depends on its operands alone.

        `exact` forbids the driver to contract it with another one. It may still assume that no operand is NaN or
        infinite: `Module.preserve_nan` forbids that.
        """
        key = (op, type_, *operands, -1 - exact)
        for scope in reversed(self._known):
            if key in scope:
                return scope[key]
        result = self.fresh(op, type_, *operands)
        if exact:
            self.module.decorate(result, Decoration.NO_CONTRACTION)
        self._known[-1][key] = result
        return result

    def fresh(self, op: Op, type_: int, *operands: int) -> int:
        """The result of an instruction that may give another one next time."""
        result = self.module.new_id()
        self._words += instruction(op, (type_, result, *operands))
        return result

    def effect(self, op: Op, *operands: int) -> None:
        """An instruction without a result."""
        self._words += instruction(op, operands)

    def when(self, condition: int, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Run `then` where the condition holds, `otherwise` elsewhere."""
        taken, skipped, merge = (self.module.new_id() for _ in range(3))
        self.effect(Op.SELECTION_MERGE, merge, 0)
        self.effect(Op.BRANCH_CONDITIONAL, condition, taken, skipped if otherwise else merge)
        self._nested(taken, then, merge)
        if otherwise is not None:
            self._nested(skipped, otherwise, merge)
        self._open(merge)

    def choose(
        self, condition: int, then: Callable[[], Sequence[int]], otherwise: Callable[[], Sequence[int]], type_: int
    ) -> tuple[int, ...]:
        """The values of the one branch that runs; both give equally many, of one type."""
        given: list[tuple[Sequence[int], int]] = []

        def branch(values: Callable[[], Sequence[int]]) -> Callable[[], None]:
            return lambda: given.append((values(), self._block))

        self.when(condition, branch(then), branch(otherwise))
        (left, left_block), (right, right_block) = given
        return tuple(
            a if a == b else self.fresh(Op.PHI, type_, a, left_block, b, right_block)
            for a, b in zip(left, right, strict=True)
        )

    def loop(
        self,
        first: int,
        step: int,
        type_: int,
        goes_on: Callable[[int], int],
        body: Callable[[int], None],
        control: int = 0,
    ) -> None:
        """Run `body(i)` for `i` from `first` on by `step` while `goes_on(i)`; all are ids of one integer type."""
        header, test, inner, forward, merge = (self.module.new_id() for _ in range(5))
        before = self._block
        self.effect(Op.BRANCH, header)
        self._open(header)
        index, following = self.module.new_id(), self.module.new_id()
        self._words += instruction(Op.PHI, (type_, index, first, before, following, forward))
        self.effect(Op.LOOP_MERGE, merge, forward, control)
        self.effect(Op.BRANCH, test)
        with self._scope():
            self._open(test)
            self.effect(Op.BRANCH_CONDITIONAL, goes_on(index), inner, merge)
            self._nested(inner, lambda: body(index), forward)
            self._open(forward)
            self._words += instruction(Op.I_ADD, (type_, following, index, step))
            self.effect(Op.BRANCH, header)
        self._open(merge)

    def repeat(self, goes_on: Callable[[], int], body: Callable[[], None]) -> None:
        """Run `body` while `goes_on()`, which reads variables."""
        header, test, inner, forward, merge = (self.module.new_id() for _ in range(5))
        self.effect(Op.BRANCH, header)
        self._open(header)
        self.effect(Op.LOOP_MERGE, merge, forward, 0)
        self.effect(Op.BRANCH, test)
        with self._scope():
            self._open(test)
            self.effect(Op.BRANCH_CONDITIONAL, goes_on(), inner, merge)
            self._nested(inner, body, forward)
            self._open(forward)
            self.effect(Op.BRANCH, header)
        self._open(merge)

    def _nested(self, label: int, write: Callable[[], None], after: int) -> None:
        self._open(label)
        with self._scope():
            write()
        self.effect(Op.BRANCH, after)

    def _open(self, label: int) -> None:
        self.effect(Op.LABEL, label)
        self._block = label

    @contextmanager
    def _scope(self) -> Iterator[None]:
        self._known.append({})
        try:
            yield
        finally:
            self._known.pop()
