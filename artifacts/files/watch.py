"""Detection of in-place changes of an open bundle's file, and reads that do not use its mapping."""

from __future__ import annotations

import fcntl
import mmap
import os
import time

from heterocc.artifacts.errors import BundleChangedError, BundleError
from heterocc.artifacts.files.pages import ask_for_large_pages
from heterocc.artifacts.foreign import pass_foreign

SETTLED_NS = 100_000_000
"""Minimum age in ns of a change so that any later one changes the ctime, whose resolution is the file system's tick."""

_fstat = os.fstat
_CHUNK = 16 * 2**20
_HINT = "load the bundle again; replace a bundle by renaming, or load it with copy=True"


class FileWatch:
    """An open file and its last state in which the content was verified."""

    __slots__ = ("_ctime", "_fd", "_mtime", "_size")

    def __init__(self, fd: int, info: os.stat_result) -> None:
        """Duplicate the descriptor."""
        self._fd = -1
        self._size, self._mtime, self._ctime = info.st_size, info.st_mtime_ns, info.st_ctime_ns
        self._fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def differs(self) -> bool:
        """Return whether the file was written, renamed, linked, unlinked, or its mode or times set, by its ctime."""
        info = _fstat(self._fd)
        return info.st_ctime_ns != self._ctime or info.st_size != self._size

    def now(self) -> os.stat_result:
        """The file's current state."""
        return os.fstat(self._fd)

    def only_replaced(self, info: os.stat_result) -> bool:
        """Return whether the file only lost its last name, as when another file is renamed over it."""
        return info.st_nlink == 0 and (info.st_size, info.st_mtime_ns) == (self._size, self._mtime)

    def accept(self, info: os.stat_result) -> None:
        """Make a state with verified content the reference, if any later change would be detected."""
        if info.st_nlink == 0 or time.time_ns() - info.st_ctime_ns > SETTLED_NS:
            self._mtime, self._ctime = info.st_mtime_ns, info.st_ctime_ns

    def check_size(self) -> None:
        """Raise BundleChangedError (HC305) if the file's size changed, so that its mapping may not be accessed."""
        size = os.fstat(self._fd).st_size
        if size != self._size:
            raise changed(f"it has {size} bytes instead of {self._size}")

    def read(self, offset: int, length: int) -> bytes:
        """`length` bytes at `offset`. Raises BundleChangedError if the file is shorter, BundleError for I/O errors."""
        parts = []
        while length:
            try:
                part = os.pread(self._fd, min(length, _CHUNK), offset)
            except OSError as error:
                pass_foreign(error)
                raise BundleError(f"the bundle cannot be read: {error.strerror}", hint="check the disk") from error
            if not part:
                raise changed("it was cut short")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def changed(how: str) -> BundleChangedError:
    """The error for a file that was changed in place."""
    return BundleChangedError(f"the bundle's file was changed while in use: {how}", hint=_HINT)


def copy_of(fd: int, size: int) -> mmap.mmap:
    """The first `size` bytes of a file in private memory. Raises BundleError if the file is shorter."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ask_for_large_pages(memory)
    with memoryview(memory) as view:
        offset = 0
        while offset < size:
            read = os.preadv(fd, [view[offset : offset + _CHUNK]], offset)
            if not read:
                raise BundleError("the file became shorter while it was read")
            offset += read
    return memory
