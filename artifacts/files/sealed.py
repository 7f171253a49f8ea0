"""Sealed memory files: immutable bytes with a path that a loader can open."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from heterocc.artifacts.errors import BundleError
from heterocc.artifacts.files.closing import Closing
from heterocc.artifacts.foreign import pass_foreign

_CHUNK = 16 * 2**20
_MFD_EXEC = 0x0010  # Linux 6.3; without it `vm.memfd_noexec` may forbid mapping the file as code
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE

MORE_FILES = "raise the limit on open files (`ulimit -n`), or close other sessions"

_DENIED = "allow the system call memfd_create, which code is loaded through, in the container's or service's filter"

_FILES = "/proc/self/fd"
_NO_PROC = "mount /proc (in a container: `mount -t proc proc /proc`)"

_serial = itertools.count(1)


class SealedFile(Closing):
    """An open sealed memory file of `size` bytes.

    `path` can be given to dlopen while the file is open. It is unique in the process even if a file descriptor's number
    is reused, because dlopen identifies loaded libraries by their path. Keep the file open while the library is loaded:
    debuggers and backtraces open the path again, and it leads to the current file of that number. Mappings of the file
    remain valid after it is closed.
    """

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size
        # The serial number in binary, "/" for 0 and "/./" for 1: another text for the same file.
        bits = "".join("/./" if bit == "1" else "/" for bit in f"{next(_serial):b}")
        self._path = f"{_FILES}{bits}/{fd}"

    @property
    def path(self) -> str:
        """A path of the file. Raises BundleError if the system has none, because /proc is not mounted."""
        try:
            Path(_FILES).stat()  # is_dir would take an exception of a signal handler for an answer
        except OSError as error:
            pass_foreign(error)
            raise BundleError(
                f"code is loaded from memory, through {_FILES}, which does not exist", hint=_NO_PROC
            ) from error
        return self._path

    @contextlib.contextmanager
    def map(self) -> Iterator[memoryview]:
        """The bytes, mapped for reading while the block runs. Raises BundleError if the system refuses."""
        if self.size == 0:
            yield memoryview(b"")
            return
        # Private: before Linux 6.7 a file sealed against writing cannot be mapped shared.
        try:
            mapped = mmap.mmap(self.fd, self.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        except OSError as error:
            pass_foreign(error)
            hint = hint_for(error, "free some memory")
            raise BundleError(f"cannot map a memory file: {error.strerror or error}", hint=hint) from error
        with mapped:
            view = memoryview(mapped)
            try:
                yield view
            finally:
                view.release()

    def close(self) -> None:
        """Close the descriptor; further calls do nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def sealed_memfd(name: str, data: bytes | memoryview) -> int:
    """A new memory file with a copy of `data`, sealed against every change; the caller owns the descriptor.

    `name` only appears in /proc. Raises BundleError if the system cannot create a memory file.
    """
    fd = -1
    try:
        fd = _memfd(name.encode("utf-8", "replace")[:200].decode("utf-8", "ignore"))
        view = memoryview(data).cast("B")
        while view.nbytes:
            view = view[os.write(fd, view[:_CHUNK]) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        pass_foreign(error)
        raise BundleError(
            f"cannot make a memory file for {name[:80]!r}: {error.strerror or error}",
            hint=_DENIED
            if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS)
            else hint_for(error, "free some memory"),
        ) from error
    return fd


def hint_for(error: OSError | ValueError, otherwise: str) -> str:
    """A hint for a system error: the limit on open files if it was reached, else `otherwise`."""
    return MORE_FILES if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE) else otherwise


def _memfd(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create(name, flags)
