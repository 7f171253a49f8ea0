"""TVM's packed modules, with the source of CUDA kernels replaced by machine code.

The format of the data that `export_library` stores in a shared object is, little endian:

    u64 number of bytes that follow
    the tree of imports: u64 count and so many u64 row offsets, u64 count and so many u64 children
    per module: text kind, and, except for "_lib" (the host code itself), text content

A text is its length in bytes (u64) and its bytes. The content of a CUDA module is a text for the format, a table of
functions, and its code as a text. Format "cuda" is source, which the loading process would have to compile; "cubin" is
machine code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

HOST = b"_lib"
CUDA = b"cuda"
CUBIN = b"cubin"


def with_cubins(packed: bytes, cubin_of: Callable[[str], bytes]) -> bytes:
    """The packed modules with the source of each CUDA module replaced by `cubin_of(source)`.

    Raises ValueError if the bytes have another format.
    """
    (size,) = struct.unpack_from("<Q", packed)
    if size != len(packed) - 8:
        raise ValueError("the length of the packed modules differs from their header")
    place = 8
    for _ in range(2):
        (count,) = struct.unpack_from("<Q", packed, place)
        place += 8 * (count + 1)
    parts = [packed[8:place]]
    while place < len(packed):
        kind, place = _read(packed, place)
        parts.append(_text(kind))
        if kind != HOST:
            content, place = _read(packed, place)
            parts.append(_text(_compiled(content, cubin_of) if kind == CUDA else content))
    body = b"".join(parts)
    return struct.pack("<Q", len(body)) + body


def _compiled(content: bytes, cubin_of: Callable[[str], bytes]) -> bytes:
    form, functions = _read(content, 0)
    if form != CUDA:
        raise ValueError(f"a CUDA module has code in format '{form.decode(errors='replace')}' instead of source")
    end = _after_functions(content, functions)
    source, last = _read(content, end)
    if last != len(content):
        raise ValueError("a CUDA module has data after its code")
    return _text(CUBIN) + content[functions:end] + _text(cubin_of(source.decode("utf-8")))


def _after_functions(content: bytes, place: int) -> int:
    """The offset after the table of functions.

    Per function: text key, text name, arguments (u64 count, each u8 code, u8 bits, u16 lanes), launch tags (u64 count,
    each a text), kinds of arguments (u64 count, each i32).
    """
    (functions,) = struct.unpack_from("<Q", content, place)
    place += 8
    for _ in range(functions):
        for _ in range(2):
            _, place = _read(content, place)
        (arguments,) = struct.unpack_from("<Q", content, place)
        place += 8 + 4 * arguments
        (tags,) = struct.unpack_from("<Q", content, place)
        place += 8
        for _ in range(tags):
            _, place = _read(content, place)
        (kinds,) = struct.unpack_from("<Q", content, place)
        place += 8 + 4 * kinds
    return int(place)


def _read(data: bytes, place: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from("<Q", data, place)
    end = place + 8 + size
    if end > len(data):
        raise ValueError("a text extends beyond the packed modules")
    return data[place + 8 : end], end


def _text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data
