"""Kernels as they are before a back end schedules them, run one after another on the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx

from heterocc.compiler.lower.gpu.schedule import tensor_dtypes
from heterocc.compiler.lower.pipeline import KernelModule
from heterocc.compiler.lower.relax.importer import static_shape
from heterocc.compiler.lower.straight import bindings_of, is_kernel_call, outputs_of

Array = np.ndarray[Any, Any]

HOST = {"kind": "llvm", "opt-level": 1}
FILL = 77
"""The initial content of a tensor that a kernel has to write."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The values that a module's kernels computed on some inputs, by the name of the variable, and the results.

    A variable of several values has a list. `terms` are those of the longest reduction of a graph node's kernels, by
    the node's name, `eps` the unit of the last place of their narrowest real numbers.
    """

    values: Mapping[str, Any]
    outputs: Sequence[Array]
    terms: Mapping[str, int]
    eps: Mapping[str, float]


class Reference:
    """Builds unscheduled kernels for the CPU, equal ones once."""

    def __init__(self) -> None:
        self._built: dict[int, Any] = {}

    def trace(self, module: KernelModule, feeds: Mapping[str, Array]) -> Trace:
        """Run the module's kernels in order; `feeds` by the names of its inputs."""
        functions = kernels_of(module)
        self._build(functions.values())
        main = module.mod["main"]
        inputs = [p for p in main.params if p.name not in module.arrays]
        values: dict[Any, Any] = {p: module.arrays[p.name] for p in main.params if p.name in module.arrays}
        values.update({p: feeds[name] for p, name in zip(inputs, module.inputs, strict=True)})
        infos = iter(module.kernels)
        terms: dict[str, int] = {}
        eps: dict[str, float] = {}
        for binding in bindings_of(main):
            value = binding.value
            if isinstance(value, relax.TupleGetItem):
                values[binding.var] = values[value.tuple_value][value.index]
            elif is_kernel_call(value):
                function = functions[value.args[0].name_hint]
                given = [
                    a.value.numpy() if isinstance(a, tvm.ir.GenericConst) else values[a] for a in arguments_of(value)
                ]
                wrote = self._run(function, given, blank(value))
                values[binding.var] = wrote[0] if len(wrote) == 1 else wrote
                for node in next(infos).nodes:
                    terms[node] = max(terms.get(node, 1), terms_of(function))
                    eps[node] = max(eps.get(node, 0.0), eps_of(function))
            else:
                values[binding.var] = values[value.args[0]].reshape(static_shape(binding.var.ty) or ())
        named = {var.name: value for var, value in values.items()}
        return Trace(named, [values[o] for o in outputs_of(main)], terms, eps)

    def _build(self, functions: Iterable[Any]) -> None:
        new = {self._key(f): f for f in functions if self._key(f) not in self._built}
        if not new:
            return
        named = {f"k{key:x}".replace("-", "_"): key for key in new}
        mod = tvm.IRModule({n: serial(new[key]).with_attr("global_symbol", n) for n, key in named.items()})
        built = tvm.compile(mod, tvm.target.Target(HOST))
        self._built.update({key: built[name] for name, key in named.items()})

    def _run(self, function: Any, given: Sequence[Array], wrote: Sequence[Array]) -> list[Array]:
        tensors = [tvm.runtime.tensor(np.array(a, order="C")) for a in (*given, *wrote)]
        self._built[self._key(function)](*tensors)
        return [t.numpy() for t in tensors[len(given) :]]

    def _key(self, function: Any) -> int:
        return int(tvm_ffi.structural_hash(function.without_attr("global_symbol")))


def kernels_of(module: KernelModule) -> dict[str, Any]:
    """The module's kernels by name."""
    return {g.name_hint: f for g, f in module.mod.functions_items() if isinstance(f, tirx.PrimFunc)}


def arguments_of(call: Any) -> list[Any]:
    """The tensors that a kernel call reads."""
    given = call.args[1]
    return list(given.fields) if isinstance(given, relax.Tuple) else [given]


def blank(call: Any, fill: int = FILL) -> list[Array]:
    """Tensors for a kernel call to write, with something in them."""
    types = list(call.ty_args)
    types = list(types[0].fields) if isinstance(types[0], relax.TupleType) else types
    return [np.full(static_shape(t) or (), fill, str(t.dtype.dtype)) for t in types]


def serial(function: Any) -> Any:
    """A kernel that TVM generates with work items, as loops; correct if these do not wait for each other."""

    def loop(mark: Any) -> Any:
        if mark.attr_key == "pragma_scope":  # of TVM's script builder; code generation warns of it
            return mark.body
        if mark.attr_key != "thread_extent":
            return mark
        var = mark.node.var
        return tirx.For(var, tirx.const(0, var.ty.dtype), mark.value, tirx.ForKind.SERIAL, mark.body)

    return tvm_ffi.structural_map(function, [(tirx.AttrStmt, loop)], order="post")


def terms_of(function: Any) -> int:
    """Terms of the kernel's reductions, one after another: those of a reduction of reductions multiply."""
    found = [1]

    def visit(block: Any) -> None:
        found.append(prod(int(v.dom.extent) for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce))

    tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, visit)], order="post")
    return max(found)


def eps_of(function: Any) -> float:
    """The unit of the last place of the narrowest real numbers in the kernel, 0 if it has none."""
    return max((float(np.finfo(d).eps) for d in tensor_dtypes(function) if d.startswith("float")), default=0.0)
