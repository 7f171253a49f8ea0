"""Code generation for an entry module (`destination_passing`), and its export as the bytes of a shared object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.lower.codegen.link import link
from heterocc.compiler.lower.pipeline import call_by_symbol, memory_passes
from heterocc.compiler.lower.progress import phase
from heterocc.runtime.execute.tvm_api import available_cores

if TYPE_CHECKING:
    from tvm.ir.transform import PassContext
    from tvm.target import Target


_PREFIX = "__tvm_ffi_"
"""TVM's prefix of the symbols of exported functions."""


PARTS = 4
"""The most objects that the kernels of a partition are divided into, to compile them in parallel."""

PART_KERNELS = 12
"""The number of kernels for which one more object is worth its overhead."""


@dataclass(frozen=True)
class Executable:
    """A Relax executable, and objects with kernels that are not in it.

    `shared` maps each symbol without code to the function that it is an alias of.
    """

    vm: relax.VMExecutable
    shared: Mapping[str, str]
    objects: tuple[bytes, ...] = ()


def build_executable(
    entry: tvm.IRModule, target: Target, config: Mapping[str, Any] | None = None, pipeline: str = "default"
) -> Executable:
    """Generate code for an entry module whose kernels are scheduled. CPU code is generated in several threads.

    `pipeline` is the name of the pass pipeline from scheduled kernels to code.
    """
    phase("generating code")
    shared: dict[str, str] = {}
    passes = tvm.transform.Sequential(memory_passes())
    entry = _without_scopes(entry)
    parts = _parts(entry) if target.kind.name == "llvm" else []
    apart = frozenset(name for part in parts for name in part)

    def memory(mod: tvm.IRModule, _context: PassContext) -> tvm.IRModule:
        mod, found = call_by_symbol(passes(mod), apart)
        shared.update(found)
        return mod

    def context() -> PassContext:  # each thread has its own
        return tvm.transform.PassContext(opt_level=3, config=dict(config or {}))

    def compiled(part: tuple[str, ...]) -> bytes:
        kernels = tvm.IRModule({entry.get_global_var(name): entry[name] for name in part})
        with context(), scratch_folder("code") as folder:
            path = folder / "kernels.o"
            tvm.tirx.build(kernels, target=target, pipeline=pipeline).write_to_file(str(path), "o")
            return path.read_bytes()

    last = tvm.transform.module_pass(memory, opt_level=0, name="heterocc_memory")
    with ThreadPoolExecutor(max(1, min(len(parts), available_cores() - 1))) as pool:
        objects = pool.map(compiled, parts)
        with context():
            vm = tvm.relax.build(entry, target=target, relax_pipeline=last, tir_pipeline=pipeline)
        return Executable(vm, shared, tuple(objects))


def kernels_executable(functions: Mapping[str, tirx.PrimFunc], target: Target) -> Executable:
    """Compile scheduled kernels, each under its name, without an entry."""
    return Executable(tvm.compile(_without_scopes(tvm.IRModule(dict(functions))), target), {})


def _parts(entry: tvm.IRModule) -> list[tuple[str, ...]]:
    """The kernels to compile apart from the entry, in groups. The number of cores must not change them, or the code
    would depend on the machine."""
    names = sorted(gvar.name_hint for gvar, f in entry.functions_items() if isinstance(f, tirx.PrimFunc))
    count = min(PARTS, len(names) // PART_KERNELS)
    return [tuple(names[i::count]) for i in range(1, count)]


def _without_scopes(mod: tvm.IRModule) -> tvm.IRModule:
    """The module without the attributes of TVM's script builder on statements, which code generation warns about."""

    def unwrapped(mark: tirx.AttrStmt) -> tirx.Stmt:
        return mark.body if mark.attr_key == "pragma_scope" else mark

    functions = {
        gvar: tvm_ffi.structural_map(function, [(tirx.AttrStmt, unwrapped)])
        if isinstance(function, tirx.PrimFunc)
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
