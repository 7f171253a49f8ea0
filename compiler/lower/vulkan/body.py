"""The function of a shader: instructions in structured blocks, with common subexpressions shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from heterocc.compiler.lower.vulkan.spirv import Decoration, Module, Op, Storage, instruction

UNROLL = 1
"""The loop control that asks the driver to unroll the loop."""

DONT_UNROLL = 2
"""The loop control that asks the driver not to unroll the loop."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A variable for one scalar."""

    body: Body
    type_: int
    pointer: int

    def load(self) -> int:
        """Load the value."""
        return self.body.fresh(Op.LOAD, self.type_, self.pointer)

    def store(self, value: int) -> None:
        """Store a value."""
        self.body.effect(Op.STORE, self.pointer, value)


class Body:
    """The blocks of the function; instructions are appended to the current one.

    A pure instruction is shared by the blocks that its first occurrence dominates: its own block and those nested in
    it.
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
        """The words of all blocks, with the last one closed."""
        return [*instruction(Op.LABEL, (self._entry,)), *self._variables, *self._words, *instruction(Op.RETURN, ())]

    def variable(self, pointer: int) -> int:
        """A variable that is private to the invocation."""
        result = self.module.new_id()
        self._variables += instruction(Op.VARIABLE, (pointer, result, Storage.FUNCTION))
        return result

    def cell(self, type_: int) -> Cell:
        """An uninitialised variable for one scalar."""
        return Cell(self, type_, self.variable(self.module.type(Op.TYPE_POINTER, Storage.FUNCTION, type_)))

    def pure(self, op: Op, type_: int, *operands: int, exact: bool = False) -> int:
        """The result of an instruction that depends only on its operands.

        `exact` forbids the driver to contract it with another instruction. The driver may still assume that operands
        are neither NaN nor infinite, unless `Module.preserve_nan` is called.
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
        """The result of an instruction that may have different results each time, such as a load."""
        result = self.module.new_id()
        self._words += instruction(op, (type_, result, *operands))
        return result

    def effect(self, op: Op, *operands: int) -> None:
        """Write an instruction without a result."""
        self._words += instruction(op, operands)

    def when(self, condition: int, then: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Run `then` if the condition holds, else `otherwise`."""
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
        """The values of the branch that runs. Both branches must return the same number of values, all of `type_`."""
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
        condition: Callable[[int], int],
        body: Callable[[int], None],
        control: int = 0,
    ) -> None:
        """Run `body(i)` for `i` from `first` in steps of `step` while `condition(i)`; ids are of integers `type_`."""
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
            self.effect(Op.BRANCH_CONDITIONAL, condition(index), inner, merge)
            self._nested(inner, lambda: body(index), forward)
            self._open(forward)
            self._words += instruction(Op.I_ADD, (type_, following, index, step))
            self.effect(Op.BRANCH, header)
        self._open(merge)

    def repeat(self, condition: Callable[[], int], body: Callable[[], None]) -> None:
        """Run `body` while `condition()`, whose value depends on variables."""
        header, test, inner, forward, merge = (self.module.new_id() for _ in range(5))
        self.effect(Op.BRANCH, header)
        self._open(header)
        self.effect(Op.LOOP_MERGE, merge, forward, 0)
        self.effect(Op.BRANCH, test)
        with self._scope():
            self._open(test)
            self.effect(Op.BRANCH_CONDITIONAL, condition(), inner, merge)
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
