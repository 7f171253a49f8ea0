"""TVM's passes from scheduled kernels to code, with functions of real numbers as arithmetic on vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import Call, TensorLoad
from tvm.tirx import get_tir_pipeline
from tvm.tirx.compilation_pipeline import register_tir_pipeline

from heterocc.compiler.lower.codegen.passes import as_pass
from heterocc.compiler.lower.cpu.generate.pairs import with_pairs
from heterocc.compiler.lower.cpu.maths.rules import expand_functions, mark_functions
from heterocc.compiler.lower.cpu.sizes import has_sizes
from heterocc.compiler.lower.kernels.expressions import dtype_of, is_conditional, is_zero, parts_of

PIPELINE = "heterocc_cpu"
"""The name by which `tvm.tirx.build` and `relax.build` find these passes."""


def _passes() -> tuple[tvm.transform.Pass, Callable[[], tvm.transform.Pass], Callable[[], tvm.transform.Pass]]:
    kernels, host, device = get_tir_pipeline("default")

    def host_code() -> tvm.transform.Pass:
        return tvm.transform.Sequential([as_pass(expand_functions), as_pass(with_pairs), host()])

    def lowered(mod: tvm.IRModule) -> tvm.IRModule:
        context = tvm.transform.PassContext.current()
        without, config = [*LEFT_TO_LLVM, *FOR_GPUS], dict(context.config)
        scheduled = bool(_parts(mod, s_tir.SBlockRealize))  # generated kernels have no blocks
        if not scheduled:
            config |= WITHOUT_SHARED_MEMORY
            without += [*FOR_SCHEDULES, *FOR_LOOPS, *(FOR_TENSORS if _is_flat(mod) else ())]
            without += [] if _has_conditions(mod) else FOR_CONDITIONS
        else:
            without += [*FOR_VECTORS, *(FOR_SCHEDULES if any(has_sizes(f) for _, f in mod.functions_items()) else ())]
        with tvm.transform.PassContext(context.opt_level, disabled_pass=without, config=config):
            return kernels(mod)

    return tvm.transform.Sequential([as_pass(mark_functions), as_pass(lowered)]), host_code, device


LEFT_TO_LLVM = ["tirx.CommonSubexprElim", "tirx.RemoveNoOp"]
"""Passes that LLVM has too, and that take a third of the time of all."""

FOR_GPUS = [
    "s_tir.InferFragment",
    "s_tir.InjectDoubleBuffer",
    "s_tir.InjectPermutedLayout",
    "s_tir.InjectSoftwarePipeline",
    "s_tir.InjectVirtualThread",
    "s_tir.LiftThreadBinding",
    "s_tir.LowerAutoCopy",
    "s_tir.LowerCrossThreadReduction",
    "s_tir.LowerThreadAllreduce",
    "s_tir.ManifestSharedMemoryLocalStage",
    "s_tir.MergeSharedMemoryAllocations",
    "s_tir.ThreadSync",
    "s_tir.TransformMmaBufferLayout",
    "s_tir.UnifyThreadBinding",
    "tirx.VerifyMemory",
]
"""Passes that change nothing in code for a CPU, and take a tenth of the time of all."""

WITHOUT_SHARED_MEMORY = {"tirx.merge_static_smem": True}
"""An option by which no two buffers of a kernel have the same memory, although its name is that of one case.

Sums of products that had the memory of another buffer, which is indexed by a loop or too large for the stack, would not
be registers, and be stored after each multiply-add. Generated kernels have no large buffers that are in use one after
the other.
"""

FOR_SCHEDULES = ["s_tir.CompactBufferAllocation"]
"""A pass that narrows no buffer of a generated kernel. It takes a third of the time of all for one that has indices in
memory, and up to 30 s for one of dynamic sizes."""

FOR_LOOPS = [
    "s_tir.HoistIfThenElse",
    "s_tir.InsertHoistIfThenElse",
    "s_tir.LoopPartition",
    "s_tir.RenormalizeSplitPattern",
]
"""Passes that split and simplify the loops of schedules. Generated kernels have theirs as they shall be, and are
simplified once, after the loops that they mark are unrolled. These passes take a quarter of the time of all."""

FOR_VECTORS = ["tirx.NarrowDataType"]
"""A pass that makes variables of loops numbers of 32 bits. Of plain loops LLVM then makes vectors that are wrong.

Seen with LLVM 22 at level 2 and vectors of 512 bits: what a branch reads at `v % 8` is read with one masked load of
neighbours, as if it were at `v`, also past the first 8 turns, and for `(v + 5) % 16`. Of 324 small loops with such
reads 126 were wrong, with variables of 64 bits none. Generated kernels have vectors of their own.
"""

FOR_CONDITIONS = ["s_tir.StmtSimplify"]
"""A pass that decides conditions and limits which hold in all turns of a loop, or in none. Vectors whose lanes have one
that is left are computed lane by lane."""

FOR_TENSORS = ["tirx.FlattenBuffer"]
"""A pass that only simplifies indices where all of them are flat. This takes a third of the time of all, and most of it
for kernels of dynamic sizes, 7 of 8 s for an attention."""


def _is_flat(mod: tvm.IRModule) -> bool:
    """Whether all reads and stores are of buffers of one dimension that have nothing to lower.

    That would be a place inside other memory, from which on they count, or truth values, which are stored as bytes.
    """
    used = _parts(mod, TensorLoad, tirx.BufferStore, tirx.AllocBuffer)
    buffers = (part.source if isinstance(part, TensorLoad) else part.buffer for part in used)
    return all(
        len(b.shape) == 1 and dtype_of(b) != "bool" and not b.ty.strides and is_zero(b.ty.elem_offset) for b in buffers
    )


def _parts(mod: tvm.IRModule, *kinds: type) -> list[Any]:
    """The parts of all kernels that are of these kinds."""
    return [part for _, function in mod.functions_items() for part in parts_of(function.body, *kinds)]


def _has_conditions(mod: tvm.IRModule) -> bool:
    """Whether what the lanes of a vector read depends on a condition, a limit, or a quotient."""
    # Expressions have `==` for themselves; the hash of an object is its address.
    lanes = {hash(loop.loop_var) for loop in _parts(mod, tirx.For) if loop.kind == tirx.ForKind.VECTORIZED}
    if not lanes:
        return False
    numbers = _parts(mod, tirx.Min, tirx.Max, tirx.FloorDiv, tirx.FloorMod)
    decided = [*filter(is_conditional, _parts(mod, Call)), *(n for n in numbers if dtype_of(n).startswith("int"))]
    return any(hash(var) in lanes for expr in decided for var in parts_of(expr, tirx.Var))


register_tir_pipeline(PIPELINE, _passes)
