"""From an entry module (`destination_passing`) to the bytes of a shared object."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tvm

from heterocc.compiler.lower.frontend import memory_passes
from heterocc.compiler.lower.link import link


def build_executable(entry: tvm.IRModule, target: Any, config: Mapping[str, Any] | None = None) -> Any:
    """The Relax executable (`tvm.relax.VMExecutable`) of an entry module whose kernels are scheduled."""
    passes = tvm.transform.Sequential(memory_passes())

    @tvm.transform.module_pass(opt_level=0, name="heterocc_memory")
    def pipeline(mod: tvm.IRModule, _context: Any) -> tvm.IRModule:
        return passes(mod)

    with tvm.transform.PassContext(opt_level=3, config=dict(config or {})):
        return tvm.relax.build(entry, target=target, relax_pipeline=pipeline)


def shared_object(executable: Any, triple: str | None) -> bytes:
    """Export an executable and link it; the same executable gives the same bytes.

    `triple` names the machine that the code is for, None this one. Device code (OpenCL, …) is packed into the object.
    Raises LinkerMissingError (HC406).
    """
    linked: list[bytes] = []

    def compile_objects(_name: str, files: list[str], **_options: Any) -> None:
        objects = {f"part{i}.o": Path(file).read_bytes() for i, file in enumerate(files)}
        linked.append(link(objects, triple))

    linker: Callable[..., None] = compile_objects
    with tempfile.TemporaryDirectory(prefix="heterocc-code-") as folder:
        executable.mod.export_library(str(Path(folder) / "code.so"), fcompile=linker, workspace_dir=folder)
    return linked[0]
