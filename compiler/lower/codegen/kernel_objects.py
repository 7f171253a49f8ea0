"""Kernels for CPUs as object files, one each, kept on disk by signature.

A kernel's object depends on nothing but its signature: it is compiled alone, under a name made of its content. So the
same kernel has the same object in every network. Kernels that differ only in the texts of their checks, which name
nodes, are compiled once: each has a copy of the object with its own name and texts (`texts.py`). TVM's passes and LLVM
work in threads, beginning with the first kernel that is scheduled, while the calling thread schedules the others;
hardly any of their time is spent in Python.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Self

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import get_tir_pipeline
from tvm.tirx.build import codegen_build

from heterocc.compiler.files.blobs import open_blobs
from heterocc.compiler.files.records import toolchain_digest
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.lower.codegen.argument_checks import with_few_checks
from heterocc.compiler.lower.codegen.busy_cores import busy_cores
from heterocc.compiler.lower.codegen.texts import Texts, with_equal_texts, with_texts
from heterocc.compiler.lower.progress import counted
from heterocc.compiler.lower.written import SOURCE
from heterocc.runtime.execute.tvm_api import available_cores

if TYPE_CHECKING:
    from tvm.target import Target

_ENTRY = "tirx.is_entry_func"
"""TVM's mark of a module's only function, which would be exported once more, as the module's main function."""


class KernelObjects:
    """The object files of scheduled kernels, compiled in threads, or from the cache on disk if they were before.

    A context manager: its end discards what was begun and not finished. Not for use by several threads.
    """

    def __init__(self, target: Target, pipeline: str) -> None:
        self._target = target
        self._pipeline = pipeline
        self._pool = ThreadPoolExecutor(max(1, available_cores() - busy_cores()))
        self._cache = open_blobs()
        self._origin = f"kernel\n{toolchain_digest()}\n{target}\n{pipeline}"
        self._found: dict[str, bytes] = {}
        self._pending: dict[str, Future[bytes]] = {}
        self._texts: dict[str, tuple[str, Texts]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self, function: tirx.PrimFunc) -> str:
        """Begin to compile a kernel, unless it is known, and return the name of the function that its object defines.

        Kernels that are equal have one object.
        """
        source = function.attrs.get(SOURCE)
        plain = function.with_attr("global_symbol", "kernel").without_attr(SOURCE)
        name = _name(plain, None if source is None else str(source))
        if name in self._texts:
            return name
        alike, texts = with_equal_texts(plain)
        if texts:
            self._texts[name] = self._begin(_name(alike, None), alike), texts
            return name
        return self._begin(name, plain)

    def _begin(self, name: str, plain: tirx.PrimFunc) -> str:
        """Begin to compile a kernel under a name, unless it is known."""
        if name in self._found or name in self._pending:
            return name
        known = self._cache.read(self._key(name)) if self._cache is not None else None
        if known is not None:
            self._found[name] = known
        else:
            named = plain.with_attr("global_symbol", name)
            self._pending[name] = self._pool.submit(_object, name, named, self._target, self._pipeline)
        return name

    def finish(self, functions: Mapping[str, tirx.PrimFunc]) -> tuple[dict[str, bytes], dict[str, str]]:
        """Compile the kernels that were not begun, and wait for the objects of all these.

        Returns the objects by the name of the function that each defines, and this name by that of the kernel.
        """
        names = {symbol: self.begin(function) for symbol, function in sorted(functions.items())}
        used = {name: self._texts.get(name, (name, {})) for name in sorted(set(names.values()))}
        begun = [name for name in sorted({alike for alike, _ in used.values()}) if name in self._pending]
        made = {name: self._pending[name].result() for name in counted("generating code", begun)}
        if self._cache is not None:
            self._cache.write({self._key(name): content for name, content in made.items()})
        objects = {alike: made.get(alike) or self._found[alike] for alike, _ in used.values()}
        return {name: with_texts(objects[alike], alike, name, texts) for name, (alike, texts) in used.items()}, names

    def _key(self, name: str) -> str:
        return hashlib.sha256(f"{self._origin}\n{name}".encode()).hexdigest()


def _name(kernel: tirx.PrimFunc, source: str | None) -> str:
    """A name that is equal for equal kernels: of the source or the text, and of TVM's hash.

    The hash sees the exact value of numbers, which a text does not have, and differences that a source does not have.
    It has too few bits to be enough. The text of a generated kernel takes as long as a tenth of its compilation.
    """
    digest = hashlib.sha256((kernel.script(show_meta=True) if source is None else source).encode())
    digest.update(b"\n%d" % tvm_ffi.structural_hash(kernel))
    return f"k{digest.hexdigest()[:32]}"


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


def _object(name: str, kernel: tirx.PrimFunc, target: Target, pipeline: str) -> bytes:
    """The object file of a kernel, which defines a function of this name. It checks its arguments only if it must."""
    lowered = _lowered(name, kernel, target, pipeline)
    checked = _needs_checks(kernel)
    lowered = with_few_checks(lowered) if checked else lowered
    config = {} if checked else {"tirx.disable_assert": True}
    with tvm.transform.PassContext(opt_level=3, config=config), scratch_folder("code") as folder:  # one for each thread
        path = folder / "kernel.o"
        codegen_build(lowered, target).write_to_file(str(path), "o")
        return path.read_bytes()
