"""Code generation for an entry module (`destination_passing`), and its export as the bytes of a shared object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax, tirx
from tvm.relax import vm_build

from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.lower.codegen.kernel_objects import KernelObjects
from heterocc.compiler.lower.codegen.link import link
from heterocc.compiler.lower.codegen.scopes import without_scopes
from heterocc.compiler.lower.pipeline import call_by_symbol, memory_passes
from heterocc.compiler.lower.progress import phase
from heterocc.compiler.lower.written import SOURCE

if TYPE_CHECKING:
    from tvm.ir.transform import PassContext
    from tvm.target import Target


_PREFIX = "__tvm_ffi_"
"""TVM's prefix of the symbols of exported functions."""


_NOTHING = "heterocc_nothing"
"""A function beside the entry of an executable without kernels, because TVM exports none without code."""


@dataclass(frozen=True)
class Executable:
    """A Relax executable, and objects with kernels that are not in it.

    `shared` maps each symbol without code to the function that it is an alias of.
    """

    vm: relax.VMExecutable
    shared: Mapping[str, str]
    objects: tuple[bytes, ...] = ()


def build_executable(
    entry: tvm.IRModule,
    target: Target,
    pipeline: str = "default",
    objects: KernelObjects | None = None,
) -> Executable:
    """Generate code for an entry module whose kernels are scheduled. CPU code is generated in several threads.

    `pipeline` is the name of the pass pipeline from scheduled kernels to code. `objects` compiles the kernels of
    CPUs, apart from the entry.
    """
    phase("generating code")
    shared: dict[str, str] = {}
    passes = tvm.transform.Sequential(memory_passes())
    entry = _without_scopes(entry)
    apart, made, names = _kernels(entry, objects)

    def memory(mod: tvm.IRModule, _context: PassContext) -> tvm.IRModule:
        mod, found = call_by_symbol(passes(mod), apart)
        shared.update(found)
        return mod

    last = tvm.transform.module_pass(memory, opt_level=0, name="heterocc_memory")
    with tvm.transform.PassContext(opt_level=3):
        if apart:
            with target:
                planned = last(entry)
            vm = _linked(relax.ExecBuilder(), planned, lambda _: None, target, pipeline)
        else:
            vm = tvm.relax.build(entry, target=target, relax_pipeline=last, tir_pipeline=pipeline)
    aliases = {symbol: names.get(function, function) for symbol, function in {**names, **shared}.items()}
    return Executable(vm, aliases, tuple(made[name] for name in sorted(made)))


def build_entries(
    entries: Mapping[str, tvm.IRModule],
    functions: Mapping[str, tirx.PrimFunc],
    write: Callable[[relax.ExecBuilder], None],
    target: Target,
    pipeline: str,
    objects: KernelObjects,
) -> Executable:
    """Generate code for several entry modules and other functions, all with distinct names.

    `write` adds the instructions that call them. The other arguments are as in `build_executable`.
    """
    phase("generating code")
    modules = [_without_scopes(entry) for entry in entries.values()]
    everything = tvm.IRModule({gv: f for module in modules for gv, f in module.functions_items()})
    for name, function in functions.items():
        everything.update_func(relax.GlobalVar(name), function)
    apart, made, names = _kernels(everything, objects)
    with tvm.transform.PassContext(opt_level=3), target:
        planned = tvm.transform.Sequential(memory_passes())(everything)
        planned, shared = call_by_symbol(planned, apart, tuple(entries))
        vm = _linked(relax.ExecBuilder(), planned, write, target, pipeline)
    aliases = {symbol: names.get(function, function) for symbol, function in {**names, **shared}.items()}
    return Executable(vm, aliases, tuple(made[name] for name in sorted(made)))


def _kernels(
    entry: tvm.IRModule, objects: KernelObjects | None
) -> tuple[frozenset[str], dict[str, bytes], dict[str, str]]:
    """The kernels that are compiled apart from the entry, all or none, their objects and the names in these."""
    if objects is None:
        return frozenset(), {}, {}
    kernels = {gvar.name_hint: f for gvar, f in entry.functions_items() if isinstance(f, tirx.PrimFunc)}
    return frozenset(kernels), *objects.finish(kernels)


def kernels_executable(functions: Mapping[str, tirx.PrimFunc], target: Target) -> Executable:
    """Compile scheduled kernels, each under its name, without an entry."""
    return Executable(tvm.compile(_without_scopes(tvm.IRModule(dict(functions))), target), {})


def _linked(
    builder: relax.ExecBuilder,
    planned: tvm.IRModule,
    write: Callable[[relax.ExecBuilder], None],
    target: Target,
    pipeline: str,
) -> relax.VMExecutable:
    """An executable of functions whose kernels are compiled apart; `write` adds instructions to it."""
    left = vm_build._vmcodegen(builder, planned, "bytecode")
    write(builder)
    constants = dict(dict(planned.attrs or {}).get("const_name_to_constant", {}))
    code = tvm.IRModule({gv: f for gv, f in left.functions_items() if isinstance(f, tirx.PrimFunc)})
    if len(code.get_global_vars()):
        return vm_build._vmlink(builder, target, code, pipeline, params=constants)
    known = _without_code.get(str(target))
    if known is None:
        function = tirx.PrimFunc([], tirx.Evaluate(tirx.IntImm("int32", 0))).with_attr("global_symbol", _NOTHING)
        known = tvm.tirx.build(tvm.IRModule({_NOTHING: function}), target, pipeline)
        _without_code[str(target)] = known
    return relax.VMExecutable(vm_build._ffi_api.VMLink(builder, target, known, [], constants))


_without_code: dict[str, tvm.runtime.Module] = {}
"""The code of executables without functions of their own, by target: compiled each time, it would be as long as that of
a small kernel."""


def _without_scopes(mod: tvm.IRModule) -> tvm.IRModule:
    """The module without the attributes of TVM's script builder on statements, which code generation warns about."""
    functions = {
        gvar: without_scopes(function)
        if isinstance(function, tirx.PrimFunc) and SOURCE not in function.attrs
        else function
        for gvar, function in mod.functions_items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs)


def shared_object(executable: Executable, triple: str | None) -> bytes:
    """Export an executable and link it. The same executable gives the same bytes.

    `triple` is the target triple of the code, None for this machine. Device code (OpenCL, …) is packed into the object.
    Raises LinkerMissingError (HC406).
    """
    phase("linking")
    linked: list[bytes] = []
    aliases = {_PREFIX + symbol: _PREFIX + function for symbol, function in executable.shared.items()}

    def compile_objects(_name: str, files: list[str], **_options: Any) -> None:
        parts = [*(Path(file).read_bytes() for file in files), *executable.objects]
        objects = {f"part{i}.o": part for i, part in enumerate(parts)}
        linked.append(link(objects, triple, aliases=aliases))

    linker: Callable[..., None] = compile_objects
    with scratch_folder("code") as folder:
        executable.vm.mod.export_library(str(folder / "code.so"), fcompile=linker, workspace_dir=str(folder))
    return linked[0]
