"""Half precision for a partition: which of its weights and values become float16 (see policy).

    KernelModule ─ what may be rounded ─ casts at the borders of each kernel (precision_kernels) ─► KernelModule

Runs after fusion: the values between kernels are known then, and a kernel computes in float32 whatever it stores. The
partition's inputs and outputs stay float32; the kernels that read and write them hold the casts. TVM's own pass
(`ToMixedPrecision`) runs before fusion, where a value that one kernel keeps in a register is rounded all the same, and
only around the operators that it knows.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx

from heterocc.compiler.lower.backend import KernelInfo, PartitionJob
from heterocc.compiler.lower.half.kernels import Narrower, moves_only, plain_memory
from heterocc.compiler.lower.half.policy import LARGEST, READS_FLOAT32, WRITES_FLOAT32, fits, plain_type
from heterocc.compiler.lower.relax.importer import dtype_name
from heterocc.compiler.lower.relax.kernels import KernelModule
from heterocc.compiler.lower.straight import (
    arguments_of,
    bindings_of,
    is_kernel_call,
    outputs_of,
    substitute,
    types_of,
    write_main,
)

Value = tuple[relax.Var, int]
"""A tensor: the variable that is bound to it, or to the tuple that it is a field of, and its place in the tuple."""


def in_half(module: KernelModule, job: PartitionJob) -> KernelModule:
    """The module with float16 weights and values between kernels where that is safe; calls keep order and symbols.

    For a trial the borders are float16 too: inside a partition they would be.
    """
    narrow = _Partition(module, job).narrow()
    main = module.mod["main"]
    narrower = Narrower(module.mod)
    replace: dict[relax.Var, relax.Var] = {}
    arrays = dict(module.arrays)
    for param in main.params:
        if (param, 0) in narrow:
            replace[param] = relax.Var(param.name, narrower.type_of(param.ty))
            if param.name in arrays:
                arrays[param.name] = _rounded(arrays[param.name])
    origin = _origins(main)
    bindings: list[tuple[relax.Var, relax.Expr, str]] = []
    symbols = iter(module.kernels)
    for binding in bindings_of(main):
        value = binding.value
        if is_kernel_call(value):
            arguments = arguments_of(value)
            reads = tuple(origin.get(a) in narrow for a in arguments)
            writes = tuple((binding.var, i) in narrow for i in range(len(types_of(binding.var.ty))))
            value = narrower.call(value, arguments, reads, writes, next(symbols).symbol)
        bindings.append((binding.var, substitute(value, replace), binding.var.name))
    params = [replace.get(p, p) for p in main.params]
    mod = narrower.finish(write_main(narrower.module(), params, bindings, outputs_of(main)))
    return dataclasses.replace(module, mod=mod, arrays=arrays)


class _Partition:
    """The values of a partition, and why some of them stay float32."""

    def __init__(self, module: KernelModule, job: PartitionJob) -> None:
        self._module = module
        self._job = job
        self._main = module.mod["main"]
        self._origin = _origins(self._main)
        self._wide: set[Value] = set()
        self._large: set[Value] = set()

    def narrow(self) -> frozenset[Value]:
        """The values to store as float16."""
        self._borders()
        for param in self._main.params:
            array = self._module.arrays.get(param.name)
            if array is not None and array.dtype == np.float32 and not fits(array):
                self._large.add((param, 0))
        infos = iter(self._module.kernels)
        for binding in bindings_of(self._main):
            if is_kernel_call(binding.value):
                self._call(binding, next(infos))
        float32 = {value for value, dtype in _tensors(self._main) if dtype == "float32"}
        return frozenset(float32 - self._wide - self._large)

    def _borders(self) -> None:
        """The partition's inputs and outputs are the model's own."""
        if self._job.trial:
            return
        self._wide.update((p, 0) for p in self._main.params if p.name not in self._module.arrays)
        self._wide.update(self._origin[o] for o in outputs_of(self._main))

    def _call(self, binding: relax.VarBinding, info: KernelInfo) -> None:
        function = self._module.mod[binding.value.args[0]]
        read = [self._origin[a] for a in arguments_of(binding.value) if a in self._origin]
        written = [(binding.var, i) for i in range(len(types_of(binding.var.ty)))]
        graph = self._job.model.graph
        types = [plain_type(graph.node_by_name[n].op_type) for n in info.nodes]
        last = [plain_type(graph.node_by_name[graph.producer[v]].op_type) for v in info.outputs if v in graph.producer]
        if not plain_memory(function):
            self._wide.update((*read, *written))
        if any(t in READS_FLOAT32 for t in types):
            self._wide.update(read)
        moves = moves_only(function)
        if not info.outputs and not moves:  # what a node keeps for itself: sums, means, states
            self._wide.update(written)
        moved = moves and not self._large.isdisjoint(read)
        heavy = any(value in self._large and value[0].name in self._module.arrays for value in read)
        heavy = heavy or any(_constant_beyond(a) for a in arguments_of(binding.value))
        if any(t in WRITES_FLOAT32 for t in last) or moved or heavy or _beyond(function):
            self._large.update(written)


def _origins(main: relax.Function) -> dict[relax.Var, Value]:
    """The tensor that each variable is: views and fields of tuples name that of another."""
    found: dict[relax.Var, Value] = {p: (p, 0) for p in main.params}
    for binding in bindings_of(main):
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            found[binding.var] = (value.tuple_value, int(value.index))
        elif is_kernel_call(value):
            found[binding.var] = (binding.var, 0)
        else:
            found[binding.var] = found[value.args[0]]
    return found


def _tensors(main: relax.Function) -> list[tuple[Value, str]]:
    """All parameters and results of kernels with their dtypes."""
    found = [((p, 0), dtype_name(p.ty)) for p in main.params]
    for binding in bindings_of(main):
        if is_kernel_call(binding.value):
            found += [((binding.var, i), dtype_name(ty)) for i, ty in enumerate(types_of(binding.var.ty))]
    return found


def _beyond(function: tirx.PrimFunc) -> bool:
    """Whether a kernel holds a finite number that float16 does not, as masks do."""
    found: list[float] = []
    tvm_ffi.structural_walk(function.body, [(tirx.FloatImm, lambda n: found.append(abs(float(n.value))))], order="post")
    return any(LARGEST < number < math.inf for number in found)


def _constant_beyond(expr: relax.Expr) -> bool:
    """The same of a constant that a kernel is called with."""
    if not isinstance(expr, tvm.ir.GenericConst) or dtype_name(expr.ty) != "float32":
        return False
    array = np.abs(expr.value.numpy())
    return bool(np.any((array > LARGEST) & np.isfinite(array)))


def _rounded(array: np.ndarray) -> np.ndarray:
    with np.errstate(under="ignore"):
        return array.astype(np.float16)
