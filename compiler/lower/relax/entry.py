"""The entry function `main(*inputs, *outputs, params)`, which stores results in tensors of the caller.

If the shapes of inputs and outputs are known only at run time, or numpy lacks a dtype of theirs, it is
`main(*inputs, params)`, which returns new tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.relax.kernels import KernelModule
from heterocc.compiler.lower.straight import (
    arguments_of,
    bindings_of,
    is_kernel_call,
    is_static,
    outputs_of,
    substitute,
    types_of,
)

if TYPE_CHECKING:
    from tvm.ir.transform import Pass, PassContext


SYMBOLS = "heterocc.symbols"
"""The attribute of the entry that holds the symbol of every kernel call in order."""

_PLAN_OUTPUTS = "relax.memory_plan_dynamic_func_output"
"""TVM's attribute of functions that return tensors of dynamic shape in memory for the largest sizes."""


def destination_passing(
    module: KernelModule,
    most: Mapping[str, int] | None = None,
    *,
    returns: bool | None = None,
    weights_before: int = 0,
    weights_after: int = 0,
) -> tvm.IRModule:
    """The module with an entry that calls kernels on inputs, outputs, one tuple of parameters, and planned workspace.

    It returns an empty tuple; if inputs or outputs have dimensions without a fixed size or dtypes that numpy lacks, a
    tuple of the outputs, which it allocates. `most` are the largest sizes of variables, by name, for which memory is
    then planned. Kernel calls are in the order of `module.kernels`; the last arguments of each are the tensors that it
    writes. `returns` says whether it allocates the outputs, whatever their shapes. `weights_before` and `weights_after`
    are how many parameters of others come in the tuple before and after those of the module. They have no types, so
    that TVM does not check them in each call.
    """
    main = module.mod["main"]
    inputs = [p for p in main.params if p.name not in module.arrays]
    weights = [p for p in main.params if p.name in module.arrays]
    bindings = bindings_of(main)
    returned = outputs_of(main)
    target: dict[tuple[relax.Var, int], relax.Var] = {}
    output_params = []
    tensors = [v for v in (*inputs, *returned) if isinstance(v.ty, relax.TensorType)]
    allocates = module.returns or not all(is_static(v) for v in tensors) if returns is None else returns
    values = {b.var: b.value for b in bindings}
    for index, output in enumerate(() if allocates else returned):
        var = target[_written(output, values)] = relax.Var(f"output_{index}", output.ty)
        output_params.append(var)
    others = [[relax.AnyType()] * count for count in (weights_before, weights_after)]
    types = [*others[0], *(w.ty for w in weights), *others[1]]
    tuple_param = relax.Var("params", relax.TupleType(types))
    block: list[relax.VarBinding] = []
    replace: dict[relax.Var, relax.Expr] = {}

    def emit(name: str, value: relax.Expr, ty: relax.TensorType | relax.TupleType) -> relax.Var:
        var = relax.Var(name, ty)
        block.append(relax.VarBinding(var, value))
        return var

    for index, weight in enumerate(weights, weights_before):
        replace[weight] = emit(weight.name, relax.TupleGetItem(tuple_param, index), weight.ty)
    fields: dict[relax.Var, list[relax.Var]] = {}
    named = {b.var.name: b.var for b in bindings}
    wholes = {home.whole for home in module.homes.values()}

    def room(var: relax.Var) -> relax.Var:
        """The tensor that a value is written to: its own, or a view of its home."""
        home = module.homes.get(var.name)
        if (var, 0) in target:
            return target[var, 0]
        if home is None:
            alloc = relax.op.builtin.alloc_tensor(var.ty.shape, var.ty.dtype.dtype, 0)
            return emit(var.name, alloc, var.ty)
        whole = named[home.whole]
        if whole not in replace:
            replace[whole] = room(whole)
        start = relax.prim_value(home.start)
        return emit(var.name, relax.op.memory.view(replace[whole], var.ty.shape, var.ty.dtype.dtype, start), var.ty)

    for binding in bindings:
        if binding.var.name in wholes:
            continue
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            replace[binding.var] = fields[value.tuple_value][value.index]
            continue
        call = substitute(value, replace)
        if not is_kernel_call(call):
            replace[binding.var] = emit(binding.var.name, call, binding.var.ty)
            continue
        types = types_of(call.ty_args[0])
        written = []
        for index, ty in enumerate(types):
            key = (binding.var, index) if len(types) > 1 else (binding.var, 0)
            destination = target.get(key)
            if destination is None and binding.var.name in module.homes:
                destination = room(binding.var)
            if destination is None:
                alloc = relax.op.builtin.alloc_tensor(ty.shape, ty.dtype.dtype, 0)
                destination = emit(f"{binding.var.name}_{index}" if len(types) > 1 else binding.var.name, alloc, ty)
            written.append(destination)
        done = relax.Call(call.args[0], [*arguments_of(call), *written], ty_args=[relax.TupleType([])])
        emit(f"{binding.var.name}_done", done, relax.TupleType([]))
        fields[binding.var] = written
        replace[binding.var] = written[0] if len(types) == 1 else relax.Tuple(written)
    results = [replace[output] for output in returned] if allocates else []
    ty = relax.TupleType([r.ty for r in results])
    result = emit("result", relax.Tuple(results), ty)
    body = relax.SeqExpr([relax.BindingBlock(block)], result)
    params = [*inputs, *output_params, tuple_param]
    entry = relax.Function(params, body, ty, is_pure=False)
    entry = entry.with_attr("global_symbol", "main").with_attr("relax.force_pure", True)
    entry = entry.with_attr(SYMBOLS, [k.symbol for k in module.kernels])
    if most and allocates:
        bounds = {name: tirx.IntImm("int64", size) for name, size in most.items()}
        entry = entry.with_attr("tir_var_upper_bound", bounds).with_attr(_PLAN_OUTPUTS, True)
    idle = {b.value.args[0].name_hint for b in bindings if b.var.name in wholes}
    idle -= {b.value.args[0].name_hint for b in bindings if is_kernel_call(b.value) and b.var.name not in wholes}
    functions = {gv: f for gv, f in module.mod.functions_items() if gv.name_hint not in {"main", *idle}}
    functions[relax.GlobalVar("main")] = entry
    return relax.transform.Normalize()(tvm.IRModule(functions))


def call_by_symbol(
    mod: tvm.IRModule, apart: Collection[str] = frozenset(), entries: Sequence[str] = ("main",)
) -> tuple[tvm.IRModule, dict[str, str]]:
    """Make each kernel call of memory-planned entries use its own symbol.

    Returns the module, and symbol → function for the calls that share a function. A profiler of the virtual machine
    then sees which node runs, although equal kernels are compiled once. The functions in `apart` are compiled
    separately and are left out of the module.
    """
    shared: dict[str, str] = {}
    functions = {gv: f for gv, f in mod.functions_items() if gv.name_hint not in (*entries, *apart)}
    for entry in entries:
        functions[mod.get_global_var(entry)] = _called_by_symbol(mod, entry, apart, shared)
    return tvm.IRModule(functions), shared


def _called_by_symbol(mod: tvm.IRModule, name: str, apart: Collection[str], shared: dict[str, str]) -> relax.Function:
    main = mod[name]
    symbols = iter([str(s) for s in main.attrs[SYMBOLS]])
    blocks = []
    for block in main.body.blocks:
        bindings = []
        for binding in block.bindings:
            call = binding.value
            kernel = isinstance(call, relax.Call) and isinstance(call.op, relax.GlobalVar)
            if kernel and not _computes_sizes(mod[call.op]):
                symbol = next(symbols)
                function = call.op.name_hint
                if symbol != function:
                    shared[symbol] = function
                if symbol != function or function in apart:
                    call = relax.Call(relax.ExternFunc(symbol), call.args, call.attrs, [relax.TupleType([])])
                    binding = relax.VarBinding(binding.var, call)
            bindings.append(binding)
        blocks.append(type(block)(bindings))
    if next(symbols, None) is not None:
        raise AssertionError("memory planning dropped a kernel call")
    body = relax.SeqExpr(blocks, main.body.body)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs).without_attr(SYMBOLS)


def _computes_sizes(function: tirx.PrimFunc) -> bool:
    """Whether TVM added the function, to compute sizes from those of the inputs."""
    return bool((function.attrs or {}).get("tirx.is_host_func", 0))


def _written(output: relax.Var, values: Mapping[relax.Var, relax.Expr]) -> tuple[relax.Var, int]:
    """The call that computes an output, and the output's field in the call's result."""
    value = values[output]
    return (value.tuple_value, int(value.index)) if isinstance(value, relax.TupleGetItem) else (output, 0)


def memory_passes() -> list[Pass]:
    """The TVM passes from the entry to virtual machine code, with memory planned for all calls at once."""
    transform = relax.transform
    return [
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.StaticPlanBlockMemory(),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        tvm.transform.module_pass(_with_numbers_as_shapes, opt_level=0, name="heterocc_numbers_as_shapes"),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        tvm.transform.module_pass(_with_shapes_as_numbers, opt_level=0, name="heterocc_shapes_as_numbers"),
        tvm.transform.module_pass(_with_sizes_in_order, opt_level=0, name="heterocc_sizes_in_order"),
        transform.AttachGlobalSymbol(),
    ]


_NUMBER = "heterocc.number"
"""A function of a shape of one dimension that returns this size, while a module has its sizes computed."""


def _with_numbers_as_shapes(mod: tvm.IRModule, _context: PassContext) -> tvm.IRModule:
    """The module with sizes of shapes in place of expressions of sizes that functions and kernels take as numbers.

    TVM computes sizes in shapes with all others. Other numbers are computed by a function each, which takes longer in a
    run, and which only TVM's virtual machine calls.
    """

    def changed(binding: relax.Binding, _: Mapping[relax.Var, relax.Expr]) -> list[relax.Binding]:
        call = binding.value if isinstance(binding, relax.VarBinding) else None
        if not isinstance(call, relax.Call):
            return [binding]
        numbers, given = [], []
        for argument in call.args:
            if _is_expression_of_sizes(argument):
                number = relax.Var(f"{binding.var.name}_number", argument.ty)
                value = relax.Call(relax.ExternFunc(_NUMBER), [relax.ShapeExpr([argument])], None, [argument.ty])
                numbers.append(relax.VarBinding(number, value))
                argument = number
            given.append(argument)
        if not numbers:
            return [binding]
        return [*numbers, relax.VarBinding(binding.var, relax.Call(call.op, given, call.attrs, call.ty_args))]

    return _rebound(mod, changed)


def _with_shapes_as_numbers(mod: tvm.IRModule, _context: PassContext) -> tvm.IRModule:
    """The module with numbers in place of the shapes of `_with_numbers_as_shapes`, whose sizes are computed now."""

    def changed(binding: relax.Binding, values: Mapping[relax.Var, relax.Expr]) -> list[relax.Binding]:
        if not isinstance(binding, relax.VarBinding) or not _is_call(binding.value, _NUMBER):
            return [binding]
        call = binding.value
        table, _rank, *size = values[call.args[0]].args
        made = relax.Call(relax.ExternFunc("vm.builtin.make_prim_value"), [table, *size], None, call.ty_args)
        return [relax.VarBinding(binding.var, made)]

    return relax.transform.Normalize()(_rebound(mod, changed))


def _is_expression_of_sizes(argument: relax.Expr) -> bool:
    """Whether an argument is a number that a run computes from sizes, other than one of these."""
    is_known = isinstance(argument, relax.Var | tirx.IntImm)
    return not is_known and isinstance(argument.ty, tvm.ir.PrimType) and str(argument.ty.dtype) == "int64"


def _rebound(
    mod: tvm.IRModule, changed: Callable[[relax.Binding, Mapping[relax.Var, relax.Expr]], list[relax.Binding]]
) -> tvm.IRModule:
    """The module with other bindings in place of each; `changed` also gets the values of all variables."""
    functions = dict(mod.functions_items())
    for gvar, function in mod.functions_items():
        if not isinstance(function, relax.Function):
            continue
        values = {b.var: b.value for block in function.body.blocks for b in block.bindings}
        blocks = [
            type(block)([new for binding in block.bindings for new in changed(binding, values)])
            for block in function.body.blocks
        ]
        body = relax.SeqExpr(blocks, function.body.body)
        functions[gvar] = relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)
    return tvm.IRModule(functions, attrs=mod.attrs)


def _is_call(value: object, name: str) -> bool:
    """Whether a value is a call of a function of the runtime."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, relax.ExternFunc):
        return False
    return str(value.op.global_symbol) == name


def _with_sizes_in_order(mod: tvm.IRModule, _context: PassContext) -> tvm.IRModule:
    """The module with the stores of computed sizes in the order of their places.

    TVM has them in the order of a hash table of expressions, which differs from process to process.
    """
    functions = {
        gvar: function.with_body(tirx.SeqStmt(sorted(function.body.seq, key=lambda s: int(s.indices[0]))))
        if isinstance(function, tirx.PrimFunc) and _computes_sizes(function) and _stores_sizes(function.body)
        else function
        for gvar, function in mod.functions_items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs)


def _stores_sizes(body: tirx.Stmt) -> bool:
    """Whether a body only stores sizes, in places of a vector that are numbers, and reads none of these places."""
    if not isinstance(body, tirx.SeqStmt) or not all(isinstance(s, tirx.BufferStore) for s in body.seq):
        return False
    read: list[TensorLoad] = []
    tvm_ffi.structural_walk(body, [(TensorLoad, read.append)], order="pre")
    places = [[tuple(access.indices) for access in found] for found in (body.seq, read)]
    if not all(len(place) == 1 and isinstance(place[0], tirx.IntImm) for found in places for place in found):
        return False
    written, needed = ({int(place[0]) for place in found} for found in places)
    return written.isdisjoint(needed)
