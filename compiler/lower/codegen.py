"""From an entry module (`destination_passing`) to the bytes of a shared object."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.frontend import call_by_symbol, memory_passes
from heterocc.compiler.lower.link import link

_PREFIX = "__tvm_ffi_"
"""What TVM puts before the symbol of an exported function."""


@dataclass(frozen=True)
class Executable:
    """A Relax executable; `shared` names the function behind each symbol that has none of its own."""

    vm: Any
    shared: Mapping[str, str]


def build_executable(entry: tvm.IRModule, target: Any, config: Mapping[str, Any] | None = None) -> Executable:
    """Generate code for an entry module whose kernels are scheduled."""
    shared: dict[str, str] = {}
    passes = tvm.transform.Sequential(memory_passes())

    def pipeline(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        mod, found = call_by_symbol(passes(mod))
        shared.update(found)
        return mod

    last = tvm.transform.module_pass(pipeline, opt_level=0, name="heterocc_memory")
    with tvm.transform.PassContext(opt_level=3, config=dict(config or {})):
        vm = tvm.relax.build(_without_scopes(entry), target=target, relax_pipeline=last)
    return Executable(vm, shared)


def _without_scopes(mod: tvm.IRModule) -> tvm.IRModule:
    """The module without marks of TVM's script builder around statements, of which code generation warns."""

    def unwrapped(mark: Any) -> Any:
        return mark.body if mark.attr_key == "pragma_scope" else mark

    functions = {
        gvar: tvm_ffi.structural_map(function, [(tirx.AttrStmt, unwrapped)])
        if isinstance(function, tirx.PrimFunc)
        else function
        for gvar, function in mod.functions_items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs)


def shared_object(executable: Executable, triple: str | None) -> bytes:
    """Export an executable and link it; the same executable gives the same bytes.

    `triple` names the machine that the code is for, None this one. Device code (OpenCL, …) is packed into the object.
    Raises LinkerMissingError (HC406).
    """
    linked: list[bytes] = []
    aliases = {_PREFIX + symbol: _PREFIX + function for symbol, function in executable.shared.items()}

    def compile_objects(_name: str, files: list[str], **_options: Any) -> None:
        objects = {f"part{i}.o": Path(file).read_bytes() for i, file in enumerate(files)}
        linked.append(link(objects, triple, aliases=aliases))

    linker: Callable[..., None] = compile_objects
    with tempfile.TemporaryDirectory(prefix="heterocc-code-") as folder:
        executable.vm.mod.export_library(str(Path(folder) / "code.so"), fcompile=linker, workspace_dir=folder)
    return linked[0]
