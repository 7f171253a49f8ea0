"""Half precision for a partition: storage of its weights and values as float16, by the rules of policy.py.

    KernelModule ─ choice of values ─ casts at the loads and stores of each kernel (kernels.py) ─► KernelModule

This runs after fusion, when the values between kernels are known; a kernel computes in float32 whatever it stores. The
partition's inputs and outputs stay float32. TVM's pass `ToMixedPrecision` runs before fusion, so it also rounds values
that a kernel keeps in registers, and it casts only around the operators that it knows.
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
from heterocc.compiler.lower.half.policy import LARGEST, fits, reads_float32, writes_float32
from heterocc.compiler.lower.magnitudes import may_exceed
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
"""A tensor: the variable bound to it or to the tuple that contains it, and its index in the tuple."""


def in_half(module: KernelModule, job: PartitionJob) -> KernelModule:
    """The module with weights and values between kernels as float16 if that is safe.

    Calls keep their order and symbols. In a trial the inputs and outputs are float16 too, as they are inner values of
    the partition that the node would be part of.
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
    """The values of a partition, and the rules by which some of them stay float32."""

    def __init__(self, module: KernelModule, job: PartitionJob) -> None:
        self._module = module
        self._job = job
        self._main = module.mod["main"]
        self._origin = _origins(self._main)
        self._wide: set[Value] = set()
        self._large: set[Value] = set()
        self._exceeding = may_exceed(job.model.graph)

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
        """Keep the partition's inputs and outputs in float32."""
        if self._job.trial:
            return
        self._wide.update((p, 0) for p in self._main.params if p.name not in self._module.arrays)
        self._wide.update(self._origin[o] for o in outputs_of(self._main))

    def _call(self, binding: relax.VarBinding, info: KernelInfo) -> None:
        function = self._module.mod[binding.value.args[0]]
        read = [self._origin[a] for a in arguments_of(binding.value) if a in self._origin]
        written = [(binding.var, i) for i in range(len(types_of(binding.var.ty)))]
        graph = self._job.model.graph
        last = [graph.node_by_name[graph.producer[v]] for v in info.outputs if v in graph.producer]
        if not plain_memory(function):
            self._wide.update((*read, *written))
        if any(reads_float32(graph.node_by_name[name]) for name in info.nodes):
            self._wide.update(read)
        moves = moves_only(function)
        if not info.outputs and not moves:  # intermediate results of a node: sums, means, states
            self._wide.update(written)
        moved = moves and not self._large.isdisjoint(read)
        heavy = any(value in self._large and value[0].name in self._module.arrays for value in read)
        heavy = heavy or any(_constant_beyond(a) for a in arguments_of(binding.value))
        exceeds = any(map(writes_float32, last)) or not self._exceeding.isdisjoint(info.outputs)
        if exceeds or moved or heavy or _beyond(function):
            self._large.update(written)


def _origins(main: relax.Function) -> dict[relax.Var, Value]:
    """The tensor behind each variable: a view or a field of a tuple shares that of another variable."""
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
    """Whether a kernel contains a finite constant that is too large for float16, as masks do."""
    found: list[float] = []
    tvm_ffi.structural_walk(function.body, [(tirx.FloatImm, lambda n: found.append(abs(float(n.value))))], order="post")
    return any(LARGEST < number < math.inf for number in found)


def _constant_beyond(expr: relax.Expr) -> bool:
    """Whether an argument of a kernel call is a constant with a finite element too large for float16."""
    if not isinstance(expr, tvm.ir.GenericConst) or dtype_name(expr.ty) != "float32":
        return False
    array = np.abs(expr.value.numpy())
    return bool(np.any((array > LARGEST) & np.isfinite(array)))


def _rounded(array: np.ndarray) -> np.ndarray:
    with np.errstate(under="ignore"):
        return array.astype(np.float16)
