"""Concatenations that lengthen an input of the model, such as keys of earlier tokens by those of new ones.

A kernel that appends takes the place of such a Concat, if attention kernels are all that reads the result. They read it
in memory that may have room for more rows than it has, so that the runtime can leave the earlier rows where they are
(docs/decisions/0051). Elsewhere the sizes of that memory are those of the tensors, and the earlier rows are copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import tvm
import tvm_ffi
from tvm import relax, tirx

from heterocc.compiler.lower.cpu.generate.append import Append, write_append
from heterocc.compiler.lower.cpu.sizes import Size
from heterocc.compiler.lower.relax.importer import dtype_name
from heterocc.compiler.lower.relax.widened import conversion
from heterocc.compiler.lower.straight import arguments_of, bindings_of, is_kernel_call, outputs_of
from heterocc.compiler.lower.written import JOINS, JOINS_AT

KEYS_ROOM = tirx.Var("room_keys", "int64")
VALUES_ROOM = tirx.Var("room_values", "int64")
ROOMS = (KEYS_ROOM, VALUES_ROOM)
"""The sizes of the memory of keys and values along the axis of rows."""


@dataclass(frozen=True, eq=False)
class Join:
    """A concatenation of an input of the function, which nothing else reads, and of `new`; `result` is an output.

    With `starts` the new rows of each item begin there. If the model stores the past in 16 bits, what is concatenated
    is the past in float32, and `result` the concatenation in 16 bits.
    """

    past: relax.Var
    new: relax.Expr
    form: Append
    result: relax.Var
    starts: relax.Expr | None = None

    def call(self, builder: relax.BlockBuilder, kernels: dict[str, relax.GlobalVar]) -> relax.Call:
        """A call of the kernel, which is added to the builder unless `kernels` has it."""
        key = repr(self.form)
        if key not in kernels:
            name = f"append_{len(kernels)}"
            kernels[key] = builder.add_func(write_append(self.form).with_attr("global_symbol", name), name)
        more = [] if self.starts is None else [self.starts]
        given = [self.past, self.new, *more, self.form.count, *self.form.hidden]
        return relax.call_tir(kernels[key], given, self.result.ty)


def joins_of(mod: tvm.IRModule, reads: Mapping[relax.Var, int]) -> dict[relax.Var, Join]:
    """The concatenations of this kind in `main`, by result; `reads` counts the readers of variables."""
    main = mod["main"]
    outputs, params = Counter(outputs_of(main)), set(main.params)
    bindings = bindings_of(main)
    conversions = {b.var: c for b in bindings if (c := conversion(mod, b.value)) is not None}
    stored = {c.source: var for var, c in conversions.items() if not c.widens and reads[var] == outputs[var] == 1}
    joins = {}
    for binding in bindings:
        join = _join(mod, binding)
        if join is None:
            continue
        widened = conversions.get(join.past)
        if widened is not None:
            rounded = stored.get(binding.var)
            if not widened.widens or rounded is None or dtype_name(rounded.ty) != dtype_name(widened.source.ty):
                continue
            form = replace(join.form, dtype=dtype_name(rounded.ty), given=join.form.dtype)
            join = replace(join, past=widened.source, form=form, result=rounded)
        if outputs[join.result] == 1 and join.past in params and reads[join.past] == 1:
            joins[binding.var] = join
    return joins


def _join(mod: tvm.IRModule, binding: relax.VarBinding) -> Join | None:
    value = binding.value
    starts: relax.Expr | None = None
    placed = (mod[value.args[0]].attrs or {}).get(JOINS_AT) if is_kernel_call(value) else None
    if placed is None:
        parts, axis = _concatenated(mod, value)
    else:  # sizes may follow
        new, starts, past, *_ = arguments_of(value)
        parts, axis = [past, new], int(placed)
    if len(parts) != 2 or axis is None:
        return None
    past, new = parts
    before, added = _dims(past), _dims(new)
    if not isinstance(past, relax.Var) or before is None or added is None:
        return None
    axis %= len(before)
    count = before[axis]
    # A kernel finds the values of its variables in the sizes of its arguments.
    plain = all(isinstance(d, tirx.Var | tirx.IntImm) for d in (*before, *added))
    if not plain or not isinstance(count, tirx.Var):
        return None
    wanted = _dims(binding.var)
    total = None if placed is None or wanted is None else wanted[axis]
    form = Append(tuple(before), axis, count, added[axis], dtype_name(past.ty), total)
    return Join(past, new, form, binding.var, starts)


def _concatenated(mod: tvm.IRModule, value: relax.Expr) -> tuple[list[relax.Expr], int | None]:
    """What an expression concatenates, and the axis; none if it is anything else."""
    if not isinstance(value, relax.Call):
        return [], None
    if getattr(value.op, "name", "") == "relax.concat" and isinstance(value.args[0], relax.Tuple):
        return list(value.args[0].fields), None if value.attrs.axis is None else int(value.attrs.axis)
    axis = (mod[value.args[0]].attrs or {}).get(JOINS) if is_kernel_call(value) else None
    return ([], None) if axis is None else (arguments_of(value), int(axis))


def _dims(expr: relax.Expr) -> list[tirx.Expr] | None:
    ty = expr.ty
    known = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
    return list(ty.shape.values) if known else None


def in_room(
    source: relax.Expr, axis: int, view: relax.Expr, shape: tuple[Size, ...], room: Size
) -> tuple[Size, ...] | None:
    """The shape of a view of all the memory of `source`; None unless rows are at the same distances in both.

    `axis` is that of rows in `source`, `room` their number in its memory; `shape` are the sizes of `view`, a reshape.
    """
    whole, dims = _dims(source), _dims(view)
    assert whole is not None and dims is not None
    kept = len(whole) - axis
    if kept > len(dims) or not all(map(tvm_ffi.structural_equal, dims[-kept:], whole[axis:])):
        return None
    place = len(dims) - kept
    return (*shape[:place], room, *shape[place + 1 :])
