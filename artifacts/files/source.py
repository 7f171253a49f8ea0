"""Sources of a bundle: a path, bytes, or a binary file, each turned into a file descriptor."""

from __future__ import annotations

import os
from typing import Protocol, runtime_checkable

from heterocc.artifacts.errors import BundleError, FileMissingError, UsageError
from heterocc.artifacts.files.sealed import hint_for, sealed_memfd
from heterocc.artifacts.foreign import pass_foreign


@runtime_checkable
class BinaryFile(Protocol):
    """An object whose `read()` returns its remaining bytes."""

    def read(self, size: int = -1, /) -> bytes:
        """Return all bytes from the current position."""
        ...


Source = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryFile
"""The source of a bundle. Bytes and the content of files are copied into sealed memory."""


def open_source(source: Source) -> tuple[int, str]:
    """A file descriptor, which the caller closes, and its name in messages: the path, or `<memory>`.

    Bytes, and the content of a file object from its current position, are copied once; a file object is not closed.
    Raises FileMissingError (HC101) if the path cannot be opened, and UsageError (HC120) for another type.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _held(source), "<memory>"
    if isinstance(source, (str, os.PathLike)):
        shown = os.fspath(source)
        if isinstance(shown, str):
            return _open(shown), shown
    elif isinstance(source, BinaryFile) and not isinstance(source, type):
        data = source.read()
        if isinstance(data, bytes):
            name = getattr(source, "name", None)
            return _held(data), name if isinstance(name, str) and name else "<memory>"
        raise UsageError(
            f"the file must be open for reading bytes, but its read() returned {type(data).__name__}",
            hint='open(path, "rb")',
        )
    raise UsageError(
        f"a bundle must be a path, bytes or a binary file, not {type(source).__name__}",
        hint='load("model.hcb"), load(data) or load(open("model.hcb", "rb"))',
    )


def reading_hint(error: OSError | ValueError) -> str:
    """What to do about a file that cannot be read."""
    return "give its user the permission to read it" if isinstance(error, PermissionError) else "check the path"


def _open(shown: str) -> int:
    try:
        # Non-blocking, so that a pipe is refused instead of waited for.
        return os.open(shown, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        pass_foreign(error)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FileMissingError(
            f"cannot open the bundle: {reason}", where=shown, hint=hint_for(error, reading_hint(error))
        ) from None


def _held(data: bytes | bytearray | memoryview) -> int:
    view = memoryview(data)
    if not view.c_contiguous:
        raise BundleError("the bytes of the bundle are not contiguous", where="<memory>", hint="load(bytes(data))")
    return sealed_memfd("bundle", view)
