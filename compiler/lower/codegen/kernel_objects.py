"""Kernels for CPUs as object files, one each, kept on disk by signature.

A kernel's object depends on nothing but its signature: it is compiled alone, under a name made of its content. So the
same kernel has the same object in every network. LLVM works in threads while the calling thread runs TVM's passes,
which call back into Python: two threads that both do so wait for the interpreter's lock most of the time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import get_tir_pipeline
from tvm.tirx.build import codegen_build

from heterocc.compiler.files.blobs import open_blobs
from heterocc.compiler.files.records import toolchain_digest
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.lower.progress import counted
from heterocc.runtime.execute.tvm_api import available_cores

if TYPE_CHECKING:
    from tvm.target import Target

_ENTRY = "tirx.is_entry_func"
"""TVM's mark of a module's only function, which would be exported once more, as the module's main function."""


def kernel_objects(
    functions: Mapping[str, tirx.PrimFunc], target: Target, pipeline: str
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Compile scheduled kernels, each to an object file, from the cache on disk if they were compiled before.

    Returns the objects by the name of the function that each defines, and this name by that of the kernel. Kernels that
    are equal have one object.
    """
    cache = open_blobs()
    names: dict[str, str] = {}
    keys: dict[str, str] = {}
    found: dict[str, bytes] = {}
    pending: dict[str, Future[bytes]] = {}
    with ThreadPoolExecutor(available_cores()) as pool:
        for symbol, function in counted("generating code", sorted(functions.items())):
            plain = function.with_attr("global_symbol", "kernel")
            name = names[symbol] = _name(plain)
            if name in keys:
                continue
            key = keys[name] = _key(name, target, pipeline)
            known = cache.read(key) if cache is not None else None
            if known is not None:
                found[name] = known
            else:
                lowered = _lowered(name, plain.with_attr("global_symbol", name), target, pipeline)
                pending[name] = pool.submit(_object, lowered, target, checked=_needs_checks(plain))
        made = {name: future.result() for name, future in pending.items()}
    if cache is not None:
        cache.write({keys[name]: content for name, content in made.items()})
    return {name: made.get(name) or found[name] for name in keys}, names


def _name(kernel: tirx.PrimFunc) -> str:
    """A name that is equal for equal kernels: of the text, and of TVM's hash, which sees the exact value of numbers."""
    digest = hashlib.sha256(kernel.script(show_meta=True).encode())
    digest.update(b"\n%d" % tvm_ffi.structural_hash(kernel))
    return f"k{digest.hexdigest()[:32]}"


def _key(name: str, target: Target, pipeline: str) -> str:
    return hashlib.sha256(f"kernel\n{toolchain_digest()}\n{target}\n{pipeline}\n{name}".encode()).hexdigest()


def _lowered(name: str, kernel: tirx.PrimFunc, target: Target, pipeline: str) -> tvm.IRModule:
    """The kernel after the passes of `tvm.tirx.build`, ready for LLVM."""
    passes, last, _ = get_tir_pipeline(pipeline)
    with tvm.transform.PassContext(opt_level=3):
        mod = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule({name: kernel}))
        mod = last()(passes(mod))
    return tvm.IRModule({gvar: f.without_attr(_ENTRY) for gvar, f in mod.functions_items()}, attrs=mod.attrs)


def _needs_checks(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel has sizes that are known only at run time, or checks that an operator demands."""
    if any(not isinstance(dim, tirx.IntImm) for param in kernel.params for dim in getattr(param, "shape", [param])):
        return True
    found: list[tirx.AssertStmt] = []
    tvm_ffi.structural_walk(kernel.body, [(tirx.AssertStmt, found.append)], order="post")
    return bool(found)


def _object(lowered: tvm.IRModule, target: Target, *, checked: bool) -> bytes:
    """The object file of a kernel. It checks its arguments if `checked`.

    The entry calls a kernel of fixed sizes with tensors of these sizes only. Checks of them, with a text for each,
    would be half of the code and a third of LLVM's time. TVM leaves out all checks of a kernel or none.
    """
    config = {} if checked else {"tirx.disable_assert": True}
    with tvm.transform.PassContext(opt_level=3, config=config), scratch_folder("code") as folder:  # one for each thread
        path = folder / "kernel.o"
        codegen_build(lowered, target).write_to_file(str(path), "o")
        return path.read_bytes()
