"""The package format of a module's kernels, which the native plug-in reads.

Numbers are little endian; a text is its length in bytes (u32) and UTF-8. Kernels are sorted by name.

    "HCVK"  u32 version (1)  u32 kernels
    per kernel:
      text name
      u32 storage buffers  u32 bytes of push constants
      u32 arguments, per argument:
        u8 kind (0 buffer, 1 push constant)  u8 dtype code (DLPack)  u8 bits  u8 0
        u32 binding, or byte offset in the push constants
      u32 launch tags, per tag: text such as "blockIdx.x"
      u32 × 3 work-group size, as fixed in the code
      u32 bytes of shared memory
      u32 features (see `Feature`)
      u32 words of SPIR-V, then the words; the entry point is "main", buffers are in descriptor set 0

A push constant is written with its own size at its offset; bytes up to the next word are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from heterocc.compiler.lower.vulkan.dtypes import Kind
from heterocc.compiler.lower.vulkan.kernel import Argument, Kernel

MAGIC = b"HCVK"
VERSION = 1

_DLPACK: dict[Kind, int] = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_HANDLE = 3


def package(kernels: Sequence[Kernel]) -> bytes:
    """The package of the kernels, which does not depend on their order."""
    ordered = sorted(kernels, key=lambda kernel: kernel.name)
    return b"".join([MAGIC, struct.pack("<II", VERSION, len(ordered)), *map(_kernel, ordered)])


def _kernel(kernel: Kernel) -> bytes:
    return b"".join(
        [
            _text(kernel.name),
            struct.pack("<III", kernel.buffers, kernel.push_bytes, len(kernel.arguments)),
            *map(_argument, kernel.arguments),
            struct.pack("<I", len(kernel.launch_tags)),
            *map(_text, kernel.launch_tags),
            struct.pack("<3I", *kernel.local_size),
            struct.pack("<III", kernel.shared_bytes, kernel.features, len(kernel.code) // 4),
            kernel.code,
        ]
    )


def _argument(argument: Argument) -> bytes:
    if argument.dtype is None:
        return struct.pack("<4BI", 0, _HANDLE, 64, 0, argument.place)
    bits = 8 * argument.dtype.bytes
    return struct.pack("<4BI", 1, _DLPACK[argument.dtype.kind], bits, 0, argument.place)


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<I", len(data)) + data
