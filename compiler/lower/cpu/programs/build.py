"""Lowering of a program: each part of straight code as any partition, joined to one executable."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.backend import KernelInfo, PartitionJob
from heterocc.compiler.lower.cpu.programs.bytecode import Bytecode
from heterocc.compiler.lower.cpu.programs.split import program_of
from heterocc.compiler.lower.cpu.programs.steps import Code, Program, Store, walk
from heterocc.compiler.lower.pipeline import KernelModule, destination_passing
from heterocc.compiler.lower.straight import bindings_of, is_kernel_call, outputs_of, with_kernel, write_main

if TYPE_CHECKING:
    import numpy as np

Kernels = Callable[[PartitionJob], KernelModule]


@dataclass(frozen=True)
class BuiltPart:
    """Straight code: its kernels as imported and as scheduled, and the module with its entry, called `name`."""

    name: str
    module: KernelModule
    scheduled: KernelModule
    entry: tvm.IRModule


@dataclass(frozen=True)
class BuiltProgram:
    """The parts of a program, their parameters and kernels, and its other functions."""

    bytecode: Bytecode
    parts: tuple[BuiltPart, ...]
    stores: dict[str, tirx.PrimFunc]
    arrays: tuple[tuple[str, np.ndarray], ...]
    kernels: tuple[KernelInfo, ...]


def try_program(job: PartitionJob, kernels: Kernels) -> tuple[KernelModule, ...]:
    """Do all of the lowering of a partition that can fail, without writing its kernels: those of its parts, in turn."""
    program = _program_of(job)
    return tuple(kernels(_job(job, program, code, index)) for index, code in enumerate(_all_codes(program)))


def _program_of(job: PartitionJob) -> Program:
    """The program of a partition, which writes outputs of fixed sizes into tensors of the caller."""
    values = job.model.graph.values
    return program_of(job, writes=all(values[v].is_static for v in (*job.inputs, *job.outputs)))


def build_program(
    job: PartitionJob, kernels: Kernels, scheduled: Callable[[KernelModule], KernelModule]
) -> BuiltProgram:
    """Lower the parts of a partition's program."""
    program = _program_of(job)
    taken: set[str] = set()
    codes_of = _all_codes(program)
    modules = [kernels(_job(job, program, code, index)) for index, code in enumerate(codes_of)]
    done = [_distinct(scheduled(module), taken) for module in modules]
    counts = [len(part.arrays) for part in done]
    parts: list[BuiltPart] = []
    for index, (code, module, part) in enumerate(zip(codes_of, modules, done, strict=True)):
        entry = destination_passing(
            part,
            returns=code is not program.last,
            weights_before=sum(counts[:index]),
            weights_after=sum(counts[index + 1 :]),
        )
        name = f"part_{index}"
        functions = {gvar: f for gvar, f in entry.functions_items() if gvar.name_hint != "main"}
        functions[relax.GlobalVar(name)] = entry["main"].with_attr("global_symbol", name)
        parts.append(BuiltPart(name, module, part, tvm.IRModule(functions)))
    infos = [
        KernelInfo(
            kernel.symbol,
            tuple(dict.fromkeys(program.owners[n] for n in kernel.nodes)),
            # values of branches and bodies are not the graph's
            kernel.outputs if all(v in job.model.graph.producer for v in kernel.outputs) else (),
        )
        for part in done
        for kernel in part.kernels
    ]
    stores: dict[str, tirx.PrimFunc] = {}
    places: dict[int, str] = {}
    for index, store in enumerate(step for step in walk(program.steps) if isinstance(step, Store)):
        places[id(store)] = symbol = _free(f"store_{index}", taken)
        stores[symbol] = _store(program.model, store).with_attr("global_symbol", symbol)
    names = {id(code): part.name for code, part in zip(codes_of, parts, strict=True)}
    arrays = tuple(item for part in done for item in part.arrays.items())
    return BuiltProgram(Bytecode(program, names, places), tuple(parts), stores, arrays, tuple(infos))


def _all_codes(program: Program) -> list[Code]:
    codes = [step for step in walk(program.steps) if isinstance(step, Code)]
    return codes if program.last is None else [*codes, program.last]


def _job(job: PartitionJob, program: Program, code: Code, index: int) -> PartitionJob:
    """The job of one part. If all of its sizes are fixed it is compiled as if the model had no others."""
    outputs = code.outputs if code is not program.last else program.outputs
    model = program.model
    touched = {
        v for n in code.nodes for v in (*model.graph.node_by_name[n].inputs, *model.graph.node_by_name[n].outputs)
    }
    if not code.sizes and all(model.graph.values[v].is_static for v in (*touched, *code.inputs)):
        model = _without_sizes(model, code)
    return dataclasses.replace(
        job,
        name=f"{job.name}.{index}",
        model=model,
        nodes=tuple(code.nodes),
        inputs=code.inputs,
        outputs=outputs,
        sizes=tuple(s.names for s in code.sizes),
    )


def _without_sizes(model: ImportedModel, code: Code) -> ImportedModel:
    """The model without symbols, unless an integer of the part follows from sizes."""
    symbols = model.symbols
    contents = {} if symbols is None else symbols.contents
    known = [contents[o] for n in code.nodes for o in model.graph.node_by_name[n].outputs if o in contents]
    return model if known else model.without_symbols


def _distinct(module: KernelModule, taken: set[str]) -> KernelModule:
    """The module with names of kernels that are not taken."""
    main = module.mod["main"]
    builder = relax.BlockBuilder()
    functions = {gvar.name_hint: f for gvar, f in module.mod.functions_items() if gvar.name_hint != "main"}
    names = {name: _free(name, taken) for name in dict.fromkeys([*functions, *(k.symbol for k in module.kernels)])}
    fresh = {
        name: builder.add_func(function.with_attr("global_symbol", names[name]), names[name])
        for name, function in functions.items()
    }
    bindings = [
        (
            b.var,
            with_kernel(b.value, fresh[b.value.args[0].name_hint]) if is_kernel_call(b.value) else b.value,
            b.var.name,
        )
        for b in bindings_of(main)
    ]
    mod = write_main(builder.get(), main.params, bindings, outputs_of(main))
    kernels = tuple(dataclasses.replace(kernel, symbol=names[kernel.symbol]) for kernel in module.kernels)
    return dataclasses.replace(module, mod=mod, kernels=kernels)


def _free(name: str, taken: set[str]) -> str:
    # The names of entries and of parts; a node of a model may be called so.
    own = f"kernel_{name}" if name == "main" or name.startswith("part_") else name
    candidate, count = own, 1
    while candidate in taken:
        candidate, count = f"{own}_{count}", count + 1
    taken.add(candidate)
    return candidate


def _store(model: ImportedModel, store: Store) -> tirx.PrimFunc:
    """A function that writes a row to its place in a tensor."""
    values = model.graph.values
    dtype = values[store.row].dtype
    names: dict[str, tirx.Var] = {}
    shape = [
        tirx.const(d, "int64") if isinstance(d, int) else names.setdefault(str(d), tirx.Var(f"d{len(names)}", "int64"))
        for d in values[store.target].shape or ()
    ]
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("store")
        build.func_attr({"tirx.noalias": True})
        row = build.arg("row", build.Buffer(tuple(shape[1:]), dtype))
        index = build.arg("index", build.Buffer((), "int64"))
        target = build.arg("target", build.Buffer(tuple(shape), dtype))
        count = math.prod(shape[1:], start=tirx.const(1, "int64"))
        rows, whole = (
            build.decl_buffer((size,), dtype, data=tirx.buffer_data(buffer))
            for size, buffer in ((count, row), (shape[0] * count, target))
        )
        place = shape[0] - index[()] if store.from_end else index[()]
        start = build.bind(tirx.max(tirx.const(0, "int64"), tirx.min(place, shape[0] - 1)) * count)
        with build.serial(tirx.const(0, "int64"), count) as number:
            build.buffer_store(whole, rows[number], [start + number])
    return builder.get()
