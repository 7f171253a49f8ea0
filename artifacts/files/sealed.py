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
_LARGER_FILES = "raise the limit on the size of files (`ulimit -f`), which holds for files in memory, too"
_MORE_MEMORY = "free some memory, or raise the limit on address space (`ulimit -v`)"

_DENIED = "allow the system call memfd_create, which code is loaded through, in the container's or service's filter"
_NOT_CODE = "allow memory files to be run as code (`sysctl vm.memfd_noexec=0`, and the container's or service's filter)"

_FILES = "/proc/self/fd"
_NO_PROC = "mount /proc (in a container: `mount -t proc proc /proc`)"

_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_REACHED = {errno.EMFILE: MORE_FILES, errno.ENFILE: MORE_FILES, errno.EFBIG: _LARGER_FILES}

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
        with self._mapped(mmap.PROT_READ) as mapped:
            view = memoryview(mapped)
            try:
                yield view
            finally:
                view.release()

    def require_loadable(self) -> None:
        """Raise BundleError if dlopen cannot load the file: it has no path, or cannot be mapped as code.

        Nothing of it is run.
        """
        _ = self.path
        if self.size:
            self._mapped(mmap.PROT_READ | mmap.PROT_EXEC).close()

    def _mapped(self, protection: int) -> mmap.mmap:
        # Private: before Linux 6.7 a file sealed against writing cannot be mapped shared.
        try:
            return mmap.mmap(self.fd, self.size, flags=mmap.MAP_PRIVATE, prot=protection)
        except OSError as error:
            pass_foreign(error)
            hint = _NOT_CODE if error.errno in _FORBIDDEN else hint_for(error, _MORE_MEMORY)
            raise BundleError(f"cannot map a memory file: {error.strerror or error}", hint=hint) from error

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
            hint=_DENIED if error.errno in _FORBIDDEN else hint_for(error, _MORE_MEMORY),
        ) from error
    return fd


def hint_for(error: OSError | ValueError, otherwise: str) -> str:
    """A hint for a system error: the limit on open files or on their size if it was reached, else `otherwise`."""
    return _REACHED.get(error.errno or 0, otherwise) if isinstance(error, OSError) else otherwise


def _memfd(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.memfd_create(name, flags)
