"""Weights that the kernel packs itself in each run: those that are inputs of a model, or computed by it.

Exporters list weights as inputs, and layers made by another network read theirs from it. To pack them takes one read
and write of each weight; generated forms read them for each tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import tvm_ffi
from tvm import tirx

from heterocc.artifacts.manifest import Block
from heterocc.compiler.lower.cpu.alignment import ANY_ADDRESS, argument_name
from heterocc.compiler.lower.cpu.generate.candidates import Packing
from heterocc.compiler.lower.cpu.generate.layouts import layout_of
from heterocc.compiler.lower.cpu.generate.maps.maps import PARALLEL_ELEMENTS
from heterocc.compiler.lower.cpu.generate.places import index, shape_of
from heterocc.compiler.lower.cpu.sizes import is_number
from heterocc.compiler.lower.kernels.expressions import dtype_of


def packed_inside(code: tirx.PrimFunc, plain: tirx.Buffer, packing: Packing) -> tirx.PrimFunc | None:
    """The kernel `code`, an argument of which is packed, for this argument as it is in `plain`.

    None if its sizes are known only at run time, or blocks of it cannot describe the packing.
    """
    sizes = shape_of(plain) or ()
    shape = [n for n in sizes if is_number(n)]
    layout = layout_of(packing, shape) if len(shape) == len(sizes) else None
    if layout is None or layout.matrix is not None:
        return None
    dtype, old = dtype_of(plain), code.params[packing.argument]
    given = tirx.decl_buffer(plain.shape, dtype, argument_name(packing.argument), data_alignment=ANY_ADDRESS)
    flat = tirx.decl_buffer((prod(shape),), dtype, "weights")
    packed = tirx.decl_buffer((packing.size,), dtype, "packed")
    body = tvm_ffi.structural_map(code.body, [(tirx.Var, lambda v: packed if v.same_as(old) else v)], order="post")
    statements = [tirx.AllocBuffer(packed), tirx.DeclBuffer(flat, data=tirx.buffer_data(given))]
    if sum(prod(block.extents) for block in layout.blocks) < packing.size:
        place = tirx.Var("place", "int64")
        zero = tirx.BufferStore(packed, tirx.const(0, dtype), [place])
        statements.append(tirx.For(place, index(0), index(packing.size), tirx.ForKind.SERIAL, zero))
    statements += [_copied(block, flat, packed) for block in layout.blocks]
    params = [given if param.same_as(old) else param for param in code.params]
    return tirx.PrimFunc(params, tirx.SeqStmt([*statements, body]), attrs=code.attrs)


def _copied(block: Block, source: tirx.Buffer, target: tirx.Buffer) -> tirx.Stmt:
    """Loops that copy a block of a weight to its places; threads share the outermost of a large one."""
    axes = [tirx.Var(f"axis_{number}", "int64") for number in range(len(block.extents))]

    def place(start: int, strides: Sequence[int]) -> list[tirx.Expr]:
        return [sum((axis * index(n) for axis, n in zip(axes, strides, strict=True)), start=index(start))]

    value = tirx.BufferLoad(source, place(block.start, block.strides))
    nest: tirx.Stmt = tirx.BufferStore(target, value, place(block.to, block.to_strides))
    for number, (axis, extent) in reversed(list(enumerate(zip(axes, block.extents, strict=True)))):
        shared = number == 0 and prod(block.extents) >= PARALLEL_ELEMENTS
        kind = tirx.ForKind.PARALLEL if shared else tirx.ForKind.SERIAL
        nest = tirx.For(axis, index(0), index(extent), kind, nest)
    return nest
