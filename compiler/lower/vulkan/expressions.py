"""Evaluation of TIR expressions to scalars. A vector is a tuple of scalars, as Vulkan's have at most four elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvm import ir, sym, tirx

from heterocc.compiler.lower.vulkan.body import Body
from heterocc.compiler.lower.vulkan.dtypes import BOOL, DType, UnsupportedError, parse
from heterocc.compiler.lower.vulkan.integers import floor_div, floor_mod, truncated_mod
from heterocc.compiler.lower.vulkan.intrinsics import barrier, call, is_rounding
from heterocc.compiler.lower.vulkan.maths.quotients import exact_quotient
from heterocc.compiler.lower.vulkan.memory import QUAD, Memory, View, key_of
from heterocc.compiler.lower.vulkan.scalar import Scalar, constant, select

if TYPE_CHECKING:
    from tvm.ir import TensorLoad


Lanes = tuple[Scalar, ...]
Operation = Callable[[Scalar, Scalar], Scalar]

_BINARY: Mapping[type[tirx.Expr], Operation] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.Div: lambda a, b: a / b,
    tirx.Mod: truncated_mod,
    tirx.FloorDiv: floor_div,
    tirx.FloorMod: floor_mod,
    # As in TVM's CPU code, NaN is propagated from the right operand only.
    tirx.Min: lambda a, b: select(a < b, a, b),
    tirx.Max: lambda a, b: select(a > b, a, b),
    tirx.EQ: lambda a, b: a.equals(b),
    tirx.NE: lambda a, b: a.differs(b),
    tirx.LT: lambda a, b: a < b,
    tirx.LE: lambda a, b: a <= b,
    tirx.GT: lambda a, b: a > b,
    tirx.GE: lambda a, b: a >= b,
    tirx.BitwiseAnd: lambda a, b: a & b,
    tirx.BitwiseOr: lambda a, b: a | b,
    tirx.BitwiseXor: lambda a, b: a ^ b,
    tirx.LShift: lambda a, b: a << b,
    tirx.RShift: lambda a, b: a >> b,
}
_FUSED: Mapping[type[tirx.Expr], Operation] = {tirx.Add: Scalar.plus, tirx.Sub: Scalar.minus}
_READING = (ir.TensorLoad, ir.Call)


@dataclass
class Context:
    """The variables and memory that a kernel's expressions refer to, by the identity of the TVM nodes.

    `axes` are launch axes, as uint32. They are converted when they are read: TVM gives unused axes 64 bits, which the
    device may not support.
    """

    body: Body
    memory: Memory
    variables: dict[int, Lanes] = field(default_factory=dict)
    axes: dict[int, Scalar] = field(default_factory=dict)

    def constant(self, value: float | bool, like: Any) -> Scalar:
        """A constant of a TVM dtype."""
        return constant(self.body, parse(like)[0], value)

    def evaluate(self, node: tirx.Expr) -> Lanes:
        """The value of an expression, one scalar per lane."""
        if type(node) in _BINARY:
            return self._binary(node)
        visit = _VISIT.get(type(node))
        if visit is None:
            raise UnsupportedError(f"expression {type(node).__name__}")
        return visit(self, node)

    def scalar(self, node: tirx.Expr) -> Scalar:
        """The value of an expression that has one lane."""
        lanes = self.evaluate(node)
        if len(lanes) != 1:
            raise UnsupportedError("a vector in place of a scalar")
        return lanes[0]

    def place(self, buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> tuple[View, Lanes]:
        """The view of an access and the scalars that it touches, in order."""
        if len(indices) != 1:
            raise UnsupportedError(f"buffer {buffer.name} with {len(indices)} indices")
        view = self.memory.view(buffer)
        elements = self.evaluate(indices[0])
        if view.lanes == 1:
            return view, elements
        starts = [e * view.lanes for e in elements]
        return view, tuple(start + lane for start in starts for lane in range(view.lanes))

    def _binary(self, node: tirx.Expr) -> Lanes:
        operation, fused = _BINARY[type(node)], _FUSED.get(type(node))
        product = isinstance(node.a, tirx.Mul) or isinstance(node.b, tirx.Mul)
        if fused is not None and product and parse(node.ty)[0].is_float:
            operation = fused
            left, right = self._product(node.a), self._product(node.b)
        else:
            left, right = self.evaluate(node.a), self.evaluate(node.b)
        return tuple(operation(a, b) for a, b in _paired(left, right))

    def _product(self, node: tirx.Expr) -> Lanes:
        if not isinstance(node, tirx.Mul):
            return self.evaluate(node)
        return tuple(a.times(b) for a, b in _paired(self.evaluate(node.a), self.evaluate(node.b)))

    def _variable(self, node: tirx.Var) -> Lanes:
        found = self.variables.get(key_of(node))
        if found is not None:
            return found
        axis = self.axes.get(key_of(node))
        if axis is None:
            raise UnsupportedError(f"variable {node.name} without a value")
        return (axis.to(parse(node.ty.dtype)[0]),)

    def _number(self, node: tirx.Expr) -> Lanes:
        return (self.constant(node.value, node.ty.dtype),)

    def _logical(self, node: tirx.Expr) -> Lanes:
        both = isinstance(node, tirx.And)
        left = self.evaluate(node.a)
        if len(left) > 1 or not loads(node.b):
            right = self.evaluate(node.b)
            return tuple(a & b if both else a | b for a, b in _paired(left, right))
        known = constant(self.body, BOOL, not both)
        if both:
            return self._choice(left[0], BOOL, lambda: self.evaluate(node.b), lambda: (known,))
        return self._choice(left[0], BOOL, lambda: (known,), lambda: self.evaluate(node.b))

    def _choice(
        self, condition: Scalar, dtype: DType, then: Callable[[], Lanes], otherwise: Callable[[], Lanes]
    ) -> Lanes:
        """The lanes of the branch that the condition selects; the other branch is not executed."""

        def ids(values: Callable[[], Lanes]) -> Callable[[], list[int]]:
            return lambda: [lane.id for lane in values()]

        type_ = dtype.compute(self.body.module)
        chosen = self.body.choose(condition.id, ids(then), ids(otherwise), type_)
        return tuple(Scalar(self.body, dtype, i) for i in chosen)

    def _not(self, node: tirx.Expr) -> Lanes:
        return tuple(~lane for lane in self.evaluate(node.a))

    def _select(self, node: tirx.Expr) -> Lanes:
        conditions = self.evaluate(node.condition)
        left, right = self.evaluate(node.true_value), self.evaluate(node.false_value)
        pairs = _paired(left, right)
        if len(conditions) == 1:
            conditions *= len(pairs)
        return tuple(select(c, a, b) for c, (a, b) in zip(conditions, pairs, strict=True))

    def _cast(self, node: tirx.Expr) -> Lanes:
        dtype, _ = parse(node.ty.dtype)
        lanes = self.evaluate(node.value) if dtype.is_float else self._to_be_rounded(node.value)
        return tuple(lane.to(dtype) for lane in lanes)

    def _to_be_rounded(self, node: tirx.Expr) -> Lanes:
        """The value of an expression that is then rounded to an integer; a quotient is computed exactly for this."""
        if not isinstance(node, tirx.Div):
            return self.evaluate(node)
        return tuple(exact_quotient(a, b) for a, b in _paired(self.evaluate(node.a), self.evaluate(node.b)))

    def _let(self, node: tirx.Expr) -> Lanes:
        self.variables[key_of(node.var)] = self.evaluate(node.value)
        return self.evaluate(node.body)

    def _ramp(self, node: tirx.Expr) -> Lanes:
        base, stride = self.scalar(node.base), self.scalar(node.stride)
        return tuple(base + stride * lane for lane in range(_count(node.lanes)))

    def _broadcast(self, node: tirx.Expr) -> Lanes:
        return self.evaluate(node.value) * _count(node.lanes)

    def _shuffle(self, node: tirx.Expr) -> Lanes:
        lanes = [lane for vector in node.vectors for lane in self.evaluate(vector)]
        return tuple(lanes[_count(index)] for index in node.indices)

    def _load(self, node: TensorLoad) -> Lanes:
        if getattr(node, "predicate", None) is not None:
            raise UnsupportedError("a predicated load")
        view, places = self.place(node.source, node.indices)
        if view.lanes == 1 and _in_quads(node.indices[0]):
            quads = [self.memory.load_quad(view, place) for place in places[::QUAD]]
            if None not in quads:
                return tuple(scalar for quad in quads if quad is not None for scalar in quad)
        return tuple(self.memory.load(view, place) for place in places)

    def _call(self, node: tirx.Expr) -> Lanes:
        name = str(getattr(node.op, "name", node.op))
        if name == "prim.if_then_else":
            condition, then, otherwise = node.args
            conditions = self.evaluate(condition)
            if len(conditions) == 1:
                dtype, _ = parse(node.ty.dtype)
                return self._choice(conditions[0], dtype, lambda: self.evaluate(then), lambda: self.evaluate(otherwise))
            if loads(then) or loads(otherwise):
                raise UnsupportedError("a vector of conditions for branches that load or call")
            pairs = _paired(self.evaluate(then), self.evaluate(otherwise))
            return tuple(select(c, a, b) for c, (a, b) in zip(conditions, pairs, strict=True))
        if name in ("tirx.call_pure_extern", "tirx.call_extern"):
            name, arguments = str(node.args[0].value), list(node.args[1:])
        else:
            arguments = list(node.args)
        if name == "tirx.tvm_storage_sync":
            barrier(self.body, str(arguments[0].value))
            return ()
        dtype, lanes = parse(node.ty.dtype)
        evaluate = self._to_be_rounded if is_rounding(name) else self.evaluate
        given = [evaluate(a) for a in arguments]
        width = max([lanes, *(len(g) for g in given)])
        spread = [g * width if len(g) == 1 else g for g in given]
        return tuple(call(name, dtype, [s[i] for s in spread]) for i in range(width))


def _in_quads(index: tirx.Expr) -> bool:
    """Whether an index consists of aligned vectors of QUAD elements."""
    if not isinstance(index, tirx.Ramp) or _count(index.lanes) % QUAD or getattr(index.stride, "value", 0) != 1:
        return False
    found = sym.Analyzer().modular_set(index.base)
    return bool(found.coeff % QUAD == 0 and found.base % QUAD == 0)


def _paired(left: Lanes, right: Lanes) -> list[tuple[Scalar, Scalar]]:
    """The pairs of lanes; a single value is paired with every lane of the other operand."""
    if len(left) == 1:
        left *= len(right)
    if len(right) == 1:
        right *= len(left)
    return list(zip(left, right, strict=True))


def loads(node: tirx.Expr) -> bool:
    """Whether an expression reads memory or calls a function, so that evaluating it unconditionally may be unsafe."""
    if isinstance(node, _READING):
        return True
    parts = ("a", "b", "value", "condition", "true_value", "false_value", "body", "base", "stride")
    children = (getattr(node, part, None) for part in parts)
    return any(hasattr(child, "ty") and loads(child) for child in children)


def _count(number: tirx.Expr) -> int:
    return int(getattr(number, "value", number))


_VISIT: Mapping[type[tirx.Expr], Callable[[Context, tirx.Expr], Lanes]] = {
    tirx.Var: Context._variable,
    tirx.IntImm: Context._number,
    tirx.FloatImm: Context._number,
    tirx.And: Context._logical,
    tirx.Or: Context._logical,
    tirx.Not: Context._not,
    tirx.BitwiseNot: Context._not,
    tirx.Select: Context._select,
    tirx.Cast: Context._cast,
    tirx.Let: Context._let,
    tirx.Ramp: Context._ramp,
    tirx.Broadcast: Context._broadcast,
    tirx.Shuffle: Context._shuffle,
    ir.TensorLoad: Context._load,
    ir.Call: Context._call,
}
