"""Capture of the CUDA source in TVM's build, and its replacement by machine code in the export."""

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

_LOCK = threading.RLock()  # TVM's global functions belong to the process


@contextmanager
def captured_sources() -> Iterator[list[str]]:
    """Correct TVM's CUDA code and keep it as source within the block; yield a list that receives that of each module.

    If TVM's CUDA runtime is loaded, its builds compile the source for the GPU of this machine. This context makes them
    create modules that only contain the source, as TVM does without that runtime.
    """
    sources: list[str] = []

    def postprocess(code: str, _target: Target | None = None) -> str:
        sources.append(complete(str(code)))
        return sources[-1]

    with _LOCK, replaced(POSTPROCESS, postprocess), replaced(CREATE, None):
        yield sources


@contextmanager
def packed_cubins(cubins: Mapping[str, bytes]) -> Iterator[None]:
    """Replace the source of each CUDA module in exported libraries by `cubins[source]` within the block."""
    with _LOCK:
        pack = tvm_ffi.get_global_func(PACK)

        def packed(data: Any, *arguments: bool | str) -> runtime.Module:
            return pack(with_cubins(bytes(data), cubins.__getitem__), *arguments)

        with replaced(PACK, packed):
            yield
