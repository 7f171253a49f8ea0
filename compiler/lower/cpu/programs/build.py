"""Lowering of a program: each part of straight code as any partition, joined to one executable."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from heterocc.compiler.lower.cpu.programs.steps import Again, Choose, Code, Program, Step, Store, codes
from heterocc.compiler.lower.pipeline import KernelModule, destination_passing
from heterocc.compiler.lower.relax.entry import SYMBOLS

if TYPE_CHECKING:
    import numpy as np

Kernels = Callable[[PartitionJob], KernelModule]


@dataclass(frozen=True)
class Part:
    """Straight code: its kernels as imported and as scheduled, and the module with its entry, called `name`."""

    name: str
    module: KernelModule
    scheduled: KernelModule
    entry: tvm.IRModule


@dataclass(frozen=True)
class BuiltProgram:
    """The parts of a program, their parameters and kernels, and its other functions."""

    bytecode: Bytecode
    parts: tuple[Part, ...]
    stores: dict[str, tirx.PrimFunc]
    arrays: tuple[tuple[str, np.ndarray], ...]
    kernels: tuple[KernelInfo, ...]


def try_program(job: PartitionJob, kernels: Kernels) -> None:
    """Do all of the lowering of a partition that can fail, without writing its kernels."""
    program = program_of(job, writes=True)
    for index, code in enumerate(_all_codes(program)):
        kernels(_job(job, program, code, index))


def build_program(
    job: PartitionJob, kernels: Kernels, scheduled: Callable[[KernelModule], KernelModule]
) -> BuiltProgram:
    """Lower the parts of a partition's program."""
    values = job.model.graph.values
    program = program_of(job, writes=all(values[v].is_static for v in (*job.inputs, *job.outputs)))
    taken: set[str] = set()
    parts: list[Part] = []
    names: dict[int, str] = {}
    types: list[relax.Type] = []
    arrays: list[tuple[str, np.ndarray]] = []
    infos: list[KernelInfo] = []
    for index, code in enumerate(_all_codes(program)):
        module = kernels(_job(job, program, code, index))
        done = scheduled(module)
        entry = destination_passing(done, returns=code is not program.last, weights_before=tuple(types))
        entry, renamed = _distinct(entry, taken)
        name = f"part_{index}"
        names[id(code)] = name
        main = done.mod["main"]
        types += [p.ty for p in main.params if p.name in done.arrays]
        arrays += done.arrays.items()
        for kernel in done.kernels:
            owners = tuple(dict.fromkeys(program.owners[n] for n in kernel.nodes))
            infos.append(KernelInfo(renamed[kernel.symbol], owners))
        parts.append(Part(name, module, done, entry))
    stores: dict[str, tirx.PrimFunc] = {}
    places: dict[int, str] = {}
    for index, store in enumerate(_stores(program.steps)):
        places[id(store)] = symbol = _free(f"store_{index}", taken)
        stores[symbol] = _store(program.model, store).with_attr("global_symbol", symbol)
    bytecode = Bytecode(program, names, places)
    return BuiltProgram(bytecode, tuple(_widen(part, types) for part in parts), stores, tuple(arrays), tuple(infos))


def _all_codes(program: Program) -> list[Code]:
    return [*codes(program.steps), *([] if program.last is None else [program.last])]


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
    return model if known else dataclasses.replace(model, symbols=None)


def _distinct(entry: tvm.IRModule, taken: set[str]) -> tuple[tvm.IRModule, dict[str, str]]:
    """The module with names of kernels that are not taken, and the new names of symbols."""
    functions = {gv: f for gv, f in entry.functions_items() if gv.name_hint != "main"}
    main = entry["main"]
    renamed = {gv.name_hint: _free(gv.name_hint, taken) for gv in functions}
    symbols = [str(s) for s in main.attrs[SYMBOLS]]
    for symbol in symbols:
        if symbol not in renamed:
            renamed[symbol] = _free(symbol, taken)
    builder = relax.BlockBuilder()
    fresh = {
        gv.name_hint: builder.add_func(_called(f, renamed[gv.name_hint]), renamed[gv.name_hint])
        for gv, f in functions.items()
    }
    blocks = []
    for block in main.body.blocks:
        bindings = []
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call) and isinstance(call.op, relax.GlobalVar):
                call = relax.Call(fresh[call.op.name_hint], call.args, call.attrs, call.ty_args)
                binding = relax.VarBinding(binding.var, call)
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    function = function.with_attr(SYMBOLS, [renamed[s] for s in symbols])
    new = dict(builder.finalize().functions_items())
    new[relax.GlobalVar("main")] = function
    return relax.transform.Normalize()(tvm.IRModule(new)), renamed


def _called(function: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    return function.with_attr("global_symbol", name)


def _free(name: str, taken: set[str]) -> str:
    # The names of entries and of parts; a node of a model may be called so.
    own = f"kernel_{name}" if name == "main" or name.startswith("part_") else name
    candidate, count = own, 1
    while candidate in taken:
        candidate, count = f"{own}_{count}", count + 1
    taken.add(candidate)
    return candidate


def _widen(part: Part, types: Sequence[relax.Type]) -> Part:
    """The part with an entry called by its name, whose last parameter is the tuple of all parameters."""
    main = part.entry["main"]
    old = main.params[-1]
    whole = relax.Var("params", relax.TupleType(list(types)))
    blocks = []
    for block in main.body.blocks:
        bindings = []
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(old):
                binding = relax.VarBinding(binding.var, relax.TupleGetItem(whole, value.index))
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    body = relax.SeqExpr(blocks, main.body.body)
    function = relax.Function([*main.params[:-1], whole], body, main.ret_ty, main.is_pure, main.attrs)
    function = function.with_attr("global_symbol", part.name)
    functions = {gv: f for gv, f in part.entry.functions_items() if gv.name_hint != "main"}
    functions[relax.GlobalVar(part.name)] = function
    return dataclasses.replace(part, entry=tvm.IRModule(functions))


def _stores(steps: Iterable[Step]) -> Iterator[Store]:
    for step in steps:
        match step:
            case Choose():
                yield from _stores([*step.then, *step.otherwise])
            case Again():
                yield from _stores(step.body)
                yield from step.stores


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
