"""Generation of code for TIR statements: loops, branches, stores and declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from heterocc.compiler.lower.gpu.nest import ROLLED
from heterocc.compiler.lower.vulkan.body import DONT_UNROLL, UNROLL
from heterocc.compiler.lower.vulkan.dtypes import UnsupportedError, parse
from heterocc.compiler.lower.vulkan.expressions import Context, loads
from heterocc.compiler.lower.vulkan.launch import Launch
from heterocc.compiler.lower.vulkan.memory import key_of
from heterocc.compiler.lower.vulkan.scalar import Scalar

if TYPE_CHECKING:
    from tvm import tirx


_SERIAL, _UNROLLED = 0, 3
"""The kinds of loops. Parallel and vectorised ones have been lowered before; bound ones are launch axes."""

_IGNORED_ATTRIBUTES = ("pragma_", "storage_alignment", "reduce_scope", "hand_threaded", "device_scope")


class Writer:
    """Writes the statements of one kernel."""

    def __init__(self, context: Context, launch: Launch) -> None:
        self._context = context
        self._body = context.body
        self._launch = launch

    def write(self, node: tirx.Stmt) -> None:
        """Write a statement. Raises UnsupportedError if Vulkan code cannot express it."""
        kind = type(node).__name__
        visit = _VISIT.get(kind)
        if visit is None:
            raise UnsupportedError(f"statement {kind}")
        visit(self, node)

    def _sequence(self, node: tirx.SeqStmt) -> None:
        """Write a sequence. Successive branches on one condition are merged, as TVM guards each store of a tile."""
        parts = list(node.seq)
        while parts:
            first = parts.pop(0)
            if not _guards(first):
                self.write(first)
                continue
            condition = self._context.scalar(first.condition)
            cases = [first.then_case]
            while parts and _guards(parts[0]) and self._context.scalar(parts[0].condition).id == condition.id:
                cases.append(parts.pop(0).then_case)
            self._body.when(condition.id, lambda kept=tuple(cases): self._all(kept))  # type: ignore[misc]

    def _all(self, statements: Iterable[tirx.Stmt]) -> None:
        for statement in statements:
            self.write(statement)

    def _store(self, node: tirx.BufferStore) -> None:
        if getattr(node, "predicate", None) is not None:
            raise UnsupportedError("a predicated store")
        values = self._context.evaluate(node.value)
        view, places = self._context.place(node.buffer, node.indices)
        if len(values) == 1:
            values *= len(places)
        for place, value in zip(places, values, strict=True):
            self._context.memory.store(view, place, value)

    def _bind(self, node: tirx.Bind) -> None:
        self._context.variables[key_of(node.var)] = self._context.evaluate(node.value)

    def _evaluate(self, node: tirx.Evaluate) -> None:
        if type(node.value).__name__ == "Call":
            self._context.evaluate(node.value)

    def _attribute(self, node: tirx.AttrStmt) -> None:
        key = str(node.attr_key)
        if key == "thread_extent":
            axis = self._launch.axis(str(node.node.thread_tag), node.value)
            self._context.axes[key_of(node.node.var)] = axis
        elif not key.startswith(_IGNORED_ATTRIBUTES):
            raise UnsupportedError(f"attribute {key}")
        self.write(node.body)

    def _declare(self, node: tirx.DeclBuffer) -> None:
        self._context.memory.declare(node.buffer, node.data)

    def _allocate(self, node: tirx.AllocBuffer) -> None:
        self._context.memory.allocate(node.buffer)

    def _branch(self, node: tirx.IfThenElse) -> None:
        condition = self._context.scalar(node.condition)
        otherwise: Callable[[], None] | None = None
        if node.else_case is not None:

            def otherwise() -> None:
                self.write(node.else_case)

        self._body.when(condition.id, lambda: self.write(node.then_case), otherwise)

    def _for(self, node: tirx.For) -> None:
        kind = int(node.kind)
        if kind not in (_SERIAL, _UNROLLED):
            raise UnsupportedError(f"a loop of kind {kind}")
        dtype, _ = parse(node.loop_var.ty.dtype)
        first = self._context.scalar(node.min).to(dtype)
        count = self._context.scalar(node.extent).to(dtype)
        step = first.constant(1)
        if getattr(node, "step", None) is not None:
            step = self._context.scalar(node.step).to(dtype)
        if count.known == 1:
            self._context.variables[key_of(node.loop_var)] = (first,)
            self.write(node.body)
            return
        end = first + count

        def body(index: int) -> None:
            self._context.variables[key_of(node.loop_var)] = (Scalar(self._body, dtype, index),)
            self.write(node.body)

        self._body.loop(
            first.id,
            step.id,
            dtype.compute(self._body.module),
            lambda index: (Scalar(self._body, dtype, index) < end).id,
            body,
            UNROLL if kind == _UNROLLED else DONT_UNROLL if ROLLED in node.annotations else 0,
        )

    def _while(self, node: tirx.While) -> None:
        self._body.repeat(lambda: self._context.scalar(node.condition).id, lambda: self.write(node.body))


def _guards(statement: tirx.Stmt) -> bool:
    """Whether a statement is a branch without `else`, on a condition that stores cannot change."""
    if type(statement).__name__ != "IfThenElse" or statement.else_case is not None:
        return False
    return not loads(statement.condition)


_VISIT: dict[str, Callable[[Writer, tirx.Stmt], None]] = {
    "SeqStmt": Writer._sequence,
    "BufferStore": Writer._store,
    "Bind": Writer._bind,
    "Evaluate": Writer._evaluate,
    "AttrStmt": Writer._attribute,
    "DeclBuffer": Writer._declare,
    "AllocBuffer": Writer._allocate,
    "IfThenElse": Writer._branch,
    "For": Writer._for,
    "While": Writer._while,
}
