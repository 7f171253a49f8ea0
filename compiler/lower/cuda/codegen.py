"""Takes CUDA source out of TVM's build and puts machine code into what it exports."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tvm_ffi

from heterocc.compiler.lower.cuda.package import with_cubins
from heterocc.compiler.lower.cuda.source import complete
from heterocc.compiler.lower.tvm_fixes.global_functions import replaced

if TYPE_CHECKING:
    from tvm import runtime
    from tvm.target import Target


POSTPROCESS = "tvm_callback_cuda_postproc"
CREATE = "ffi.Module.create.cuda"
PACK = "codegen.codegen_blob"

_LOCK = threading.RLock()  # the functions are the process's


@contextmanager
def captured_sources() -> Iterator[list[str]]:
    """While open, TVM's CUDA code is completed and kept as source; gives that of each module as it is generated.

    Where TVM's CUDA runtime is loaded, a build would compile the source for the GPU that is here: a module that only
    holds the source is what TVM makes without that runtime.
    """
    sources: list[str] = []

    def postprocess(code: str, _target: Target | None = None) -> str:
        sources.append(complete(str(code)))
        return sources[-1]

    with _LOCK, replaced(POSTPROCESS, postprocess), replaced(CREATE, None):
        yield sources


@contextmanager
def packed_cubins(cubins: Mapping[str, bytes]) -> Iterator[None]:
    """While open, exported libraries hold `cubins[source]` in place of each CUDA module's source."""
    with _LOCK:
        pack = tvm_ffi.get_global_func(PACK)

        def packed(data: Any, *arguments: bool | str) -> runtime.Module:
            return pack(with_cubins(bytes(data), cubins.__getitem__), *arguments)

        with replaced(PACK, packed):
            yield
