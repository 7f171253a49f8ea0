"""Replacement of attention in a Relax function by one kernel, which includes the transposes around it.

    scores = matmul(q, k); any of scores · c, scores / c, scores + mask, where(mask, …);
    matmul(softmax(scores), v); transpositions of q, k, v and of the result are distances in memory, factors of q and k
    are factors of the scores; where(…, 0, softmax) of whole rows

Each intermediate value must have one reader, because the kernel does not store it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, tirx

from heterocc.compiler.lower.arranged import strides_of
from heterocc.compiler.lower.cpu.concatenations.appended import KEYS_ROOM, ROOMS, VALUES_ROOM, in_room, joins_of
from heterocc.compiler.lower.cpu.generate.attention.attention import hidden_sizes, write_attention
from heterocc.compiler.lower.cpu.generate.attention.description import Attention, Operand, ScoreStep, strided
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.rewrites.bindings import Bindings, without_idle_calls
from heterocc.compiler.lower.cpu.rewrites.operands import (
    broadcast_operand,
    dims_of,
    float_shape,
    repeated_heads,
)
from heterocc.compiler.lower.cpu.sizes import Size, assuming, is_number, size_of, with_guards
from heterocc.compiler.lower.relax.importer import ImportedFunction, dtype_name
from heterocc.compiler.lower.straight import outputs_of, vars_of, write_main

Steps = tuple[tuple[ScoreStep, relax.Expr | None], ...]
"""Steps in order, with the tensors of their operands."""


def fuse_attention(function: ImportedFunction, isa: Isa) -> ImportedFunction:
    """The function with a kernel call for each attention, which is attributed to all its nodes."""
    graph = _Graph(without_idle_calls(function))
    params = graph.function.mod["main"].params
    rooms = ROOMS if graph.appended else ()
    with assuming([*(dim for p in params for dim in dims_of(p)), *rooms]):
        matches = graph.matches(isa)
    match_of = {f.last: f for f in matches}
    if not match_of:
        return function
    function = graph.function
    builder = relax.BlockBuilder(function.mod)
    kernels: dict[str, relax.GlobalVar] = {}
    appending: dict[str, relax.GlobalVar] = {}
    node_of = dict(function.node_of)
    written = {join.result for join in graph.appended.values()}
    bindings = []
    for binding in graph.bindings:
        value, match = binding.value, match_of.get(binding.var)
        if match is not None:
            key = repr(match.form)
            if key not in kernels and match.kernel is not None:
                name = f"attention_{len(kernels)}"
                kernels[key] = builder.add_func(match.kernel.with_attr("global_symbol", name), name)
            given = [*match.arguments, *hidden_sizes(match.form)]
            value = relax.call_tir(kernels[key], given, binding.var.ty)
        elif binding.var in graph.appended:
            join = graph.appended[binding.var]
            bindings.append((join.result, join.call(builder, appending), join.result.name))
            continue
        elif binding.var in written:
            continue
        bindings.append((binding.var, value, binding.var.name))
    live = {v for o in outputs_of(function.mod["main"]) for v in vars_of(o)}
    for var, value, _ in reversed(bindings):
        if var in live:
            live.update(vars_of(value))
    for match in match_of.values():
        inside = [v.name for v in match.inside if v not in live or v.same_as(match.last)]
        nodes = (n for b in graph.bindings if b.var.name in inside for n in function.node_of.get(b.var.name, ()))
        node_of[match.last.name] = tuple(dict.fromkeys(nodes))
    kept = [b for b in bindings if b[0] in live]
    mod = write_main(builder.get(), function.mod["main"].params, kept, outputs_of(function.mod["main"]))
    return dataclasses.replace(function, mod=mod, node_of=node_of)


@dataclass(frozen=True, eq=False)
class _Match:
    """An attention: the variables that it computes, `last` being its result, and the tensors that it reads."""

    form: Attention
    arguments: tuple[relax.Expr, ...]
    inside: tuple[relax.Var, ...]
    last: relax.Var
    kernel: tirx.PrimFunc | None = None


class _Graph(Bindings):
    """The attentions of a function."""

    def __init__(self, function: ImportedFunction) -> None:
        super().__init__(function)
        self.written: dict[str, tirx.PrimFunc | None] = {}
        self.appended = joins_of(function.mod, self.reads)

    def matches(self, isa: Isa) -> list[_Match]:
        """The attentions of the function, with kernels; leaves in `appended` what only they read, as keys or values."""
        while True:
            tried = [self.certain_attention(b.var, isa) for b in self.bindings]
            matches = [f for f in tried if f is not None]
            left = {var: join for var, join in self.appended.items() if self._is_read_in_room(var, matches)}
            if len(left) == len(self.appended):
                return matches
            self.appended = left

    def _is_read_in_room(self, rows: relax.Var, matches: Sequence[_Match]) -> bool:
        """Whether all that reads a variable is attention that has it as keys or values."""
        result = self.appended[rows].result
        readers = [m for m in matches if any(result.same_as(a) for a in m.arguments)]
        if any(result.same_as(a) for m in readers for a in (m.arguments[0], *m.arguments[3:])):
            return False
        inside = {v for m in readers for v in m.inside}
        seen = [rows]
        for var in seen:
            for reader in self.readers_of.get(var, []):
                if reader.same_as(result):
                    continue
                is_product = self.call(reader, "relax.matmul") is not None
                if reader not in inside or (reader in self.outputs and not is_product):
                    return False
                seen += [] if is_product else [reader]
        return bool(readers)

    def certain_attention(self, weights: relax.Var, isa: Isa) -> _Match | None:
        """The attention whose softmax a variable is, with its kernel; None if it is one for some sizes only."""
        match, guards = with_guards(lambda: self.attention(weights))
        if match is None or guards:
            return None
        key = repr(match.form)
        if key not in self.written:
            self.written[key] = write_attention(match.form, isa)
        return dataclasses.replace(match, kernel=self.written[key]) if self.written[key] is not None else None

    def attention(self, weights: relax.Var) -> _Match | None:
        """The attention whose softmax a variable is."""
        softmax = self.call(weights, "relax.nn.softmax")
        shape = float_shape(weights)
        if softmax is None or shape is None or len(shape) < 2:
            return None
        if int(softmax.attrs.axis) not in (-1, len(shape) - 1):
            return None
        before = self._scores(softmax.args[0])
        shares, nan, empty = self._shares(weights, shape)
        result = self.only_reader(shares, "relax.matmul")
        if before is None or result is None or not self.value_of[result].args[0].same_as(shares):
            return None
        product, steps = before
        (q, by_q), (k, by_k) = (self._peeled(a) for a in self.value_of[product].args)
        if by_q * by_k != 1:
            steps = ((ScoreStep("multiply", by_q * by_k), None), *steps)
        v = self.value_of[result].args[1]
        outer, rows, keys = shape[:-2], shape[-2], shape[-1]
        sides = [self._operand(q, outer), self._operand(k, outer, KEYS_ROOM), self._operand(v, outer, VALUES_ROOM)]
        total = float_shape(result)
        if total is None or total[:-1] != (*outer, rows) or any(s is None for s in sides):
            return None
        operands, arguments = zip(*(s for s in sides if s is not None), strict=True)
        last, out = self._result(result)
        terms = float_shape(q)
        if terms is None or any(is_number(n) and n == 0 for n in (*shape, terms[-1], total[-1])):
            return None
        masks = [mask for _, mask in steps if mask is not None]
        given = [s if m is None else dataclasses.replace(s, operand=broadcast_operand(m, shape)) for s, m in steps]
        if any(s.operand is None for s, (_, mask) in zip(given, steps, strict=True) if mask is not None):
            return None
        across = dataclasses.replace(operands[1], row=operands[1].column, column=operands[1].row)
        sizes = (rows, keys, terms[-1], total[-1])
        zeros = None if empty is None else broadcast_operand(empty, shape)
        form = Attention(outer, *sizes, operands[0], across, operands[2], out, tuple(given), zeros, nan)
        masks += [] if empty is None else [empty]
        return _Match(form, (*arguments, *masks), self._computed(last, (*arguments, *masks)), last)

    def _computed(self, last: relax.Var, given: Sequence[relax.Expr]) -> tuple[relax.Var, ...]:
        """The variables that lead from those given, or from rows that are appended, to the last one."""
        inside = [last]
        for var in inside:
            for read in vars_of(self.value_of[var]):
                is_given = read in self.appended or any(read.same_as(one) for one in given)
                if read in self.value_of and not is_given and read not in inside:
                    inside.append(read)
        return tuple(inside)

    def _shares(self, weights: relax.Var, shape: tuple[Size, ...]) -> tuple[relax.Var, bool, relax.Expr | None]:
        """The softmax below a replacement of rows by zeros, and the kind of these rows."""
        none: tuple[relax.Var, bool, None] = (weights, False, None)
        readers = list(dict.fromkeys(self.readers_of.get(weights, [])))
        where = next((r for r in readers if self.call(r, "relax.where") is not None), None)
        if where is None:
            return none
        condition, yes, no = self.value_of[where].args
        if self.number(yes) != 0 or not no.same_as(weights) or float_shape(where) != shape:
            return none
        nan = self.call(condition, "relax.isnan")
        if nan is not None and nan.args[0].same_as(weights):
            alone = self.reads[weights] == 2 and self.reads[condition] == 1
            return (where, True, None) if alone else none
        if self.reads[weights] != 1:
            return none
        array = self.array(condition)
        if array is not None and not array.any():
            return where, False, None
        operand = broadcast_operand(condition, shape)
        rows = operand is not None and operand.dtype == "bool" and is_number(operand.column) and operand.column == 0
        return (where, False, condition) if rows else none

    def _peeled(self, expr: relax.Expr) -> tuple[relax.Expr, float]:
        """A factor of the scores without multiplications by numbers, and the product of these."""
        factor = 1.0
        while isinstance(expr, relax.Var) and self.reads[expr] == 1:
            call = self.call(expr, "relax.multiply")
            number = None if call is None else self.number(call.args[1])
            if call is None or number is None or float_shape(call.args[0]) != float_shape(expr):
                break
            factor, expr = factor * number, call.args[0]
        return expr, factor

    def _scores(self, expr: relax.Expr) -> tuple[relax.Var, Steps] | None:
        """The product that a softmax reads through steps, and the steps."""
        steps: list[tuple[ScoreStep, relax.Expr | None]] = []
        while isinstance(expr, relax.Var) and self.reads[expr] == 1 and float_shape(expr) is not None:
            call = self.value_of.get(expr)
            if self.call(expr, "relax.matmul") is not None:
                return expr, tuple(reversed(steps))
            scaled = self._step(call)
            if scaled is None or float_shape(scaled[0]) != float_shape(expr):
                return None
            expr = scaled[0]
            if scaled[1] is not None:
                steps.append((scaled[1], scaled[2]))
        return None

    def _step(self, call: relax.Expr | None) -> tuple[relax.Expr, ScoreStep | None, relax.Expr | None] | None:
        """The scores that a call changes, the step and its tensor; the step is None if the scores do not change."""
        name = getattr(getattr(call, "op", None), "name", "")
        assert call is None or isinstance(call, relax.Expr)
        if name in ("relax.multiply", "relax.divide", "relax.add"):
            assert isinstance(call, relax.Call)
            for scores, other in (call.args, call.args[::-1]):
                number = self.number(other)
                if number is not None and not (name == "relax.divide" and other.same_as(call.args[0])):
                    return scores, ScoreStep(name.removeprefix("relax."), number), None  # type: ignore[arg-type]
            if name != "relax.add":
                return None
            scores, mask = sorted(call.args, key=self._is_scores, reverse=True)
            if not self._is_scores(scores) or float_shape(mask) is None:
                return None
            array = self.array(mask)
            if array is not None and not array.any():
                return scores, None, None
            return scores, ScoreStep("add"), mask
        if name == "relax.where":
            assert isinstance(call, relax.Call)
            condition, yes, no = call.args
            if self.number(yes) is not None:
                return no, ScoreStep("where", self.number(yes)), condition
            if self.number(no) is not None:
                return yes, ScoreStep("unless", self.number(no)), condition
        return None

    def _is_scores(self, expr: relax.Expr) -> bool:
        """Whether an expression is a product followed by steps."""
        return isinstance(expr, relax.Var) and self._scores(expr) is not None

    def _operand(
        self, expr: relax.Expr, outer: Sequence[Size], room: tirx.Var | None = None
    ) -> tuple[Operand, relax.Expr] | None:
        """A factor, and the tensor that it is read from through a transposition and reshapes.

        Keys and values have `room`, the number of rows in the memory of a tensor that rows are appended to.
        """
        shape = float_shape(expr)
        if shape is None or len(shape) < 2:
            return None
        axes = self.axes(expr, len(shape))
        source, view = self.reshaped(expr if axes is None else self.value_of[expr].args[0])
        repeated = self._repeated(source, view)
        repeats = 1
        if repeated is not None:
            view, repeats = repeated
            source, _ = self.reshaped(view)
        stored, along, dtype = float_shape(source), float_shape(view), "float32"
        if stored is None or along is None:
            return None
        narrow = None if room is None else self.widened(source)
        join = self.appended.get(source if narrow is None else narrow) if isinstance(source, relax.Var) else None
        if narrow is not None:
            source, dtype = narrow, dtype_name(narrow.ty)
        if join is not None:
            size = None if room is None else size_of(room)
            wide = None if size is None else in_room(source, join.form.axis, view, along, size)
            if size is None or wide is None:
                return None
            along, stored = wide, (*stored[: join.form.axis], size, *stored[join.form.axis + 1 :])
            source, dtype = join.result, join.form.dtype
        steps = list(strides_of(along))
        if repeated is not None:
            del steps[-3]  # the axis of copies
        steps = steps if axes is None else [steps[a] for a in axes]
        operand = dataclasses.replace(strided(shape, steps, outer, stored), dtype=dtype)
        if repeats > 1:
            head = len(shape) - 3 if axes is None else axes.index(len(shape) - 3)
            if head >= len(shape) - 2:
                return None
            place = len(outer) + 2 - len(shape) + head
            operand = dataclasses.replace(
                operand, repeats=tuple(repeats if p == place else 1 for p in range(len(outer)))
            )
        return operand, source

    def _repeated(self, source: relax.Expr, view: relax.Expr) -> tuple[relax.Expr, int] | None:
        """What is repeated if `view` is [..., heads · n, rows, columns] of `source` [..., heads, n, rows, columns].

        Also the number n. Heads of keys and values are repeated for those of several queries.
        """
        call = self.call(source, "relax.broadcast_to")
        if call is None or source.same_as(view):
            return None
        count = repeated_heads(*(dims_of(e) for e in (call.args[0], source, view)))
        return None if count is None else (call.args[0], count)

    def _result(self, result: relax.Var) -> tuple[relax.Var, Operand]:
        """The variable that has the product, transposed if its reader does that and keeps columns, and its places."""
        shape, last = float_shape(result), self.only_reader(result, "relax.permute_dims")
        assert shape is not None
        axes = None if last is None else self.axes(last, len(shape))
        if last is None or axes is None or axes[-1] != len(shape) - 1:
            last, axes = result, tuple(range(len(shape)))
        stored = tuple(shape[a] for a in axes)
        along = strides_of(stored)
        return last, strided(shape, [along[axes.index(a)] for a in range(len(shape))], shape[:-2], stored)
