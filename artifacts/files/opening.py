"""Opening of files for reading that never waits, whatever a path leads to."""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import BinaryIO

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)


_MOST = 1 << 30
"""Bytes of a pipe, at most: nothing else tells how many will come."""


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """A file opened for reading bytes. Raises OSError, also for what is neither a regular file nor a pipe.

    A pipe is read to its end first. One without data is an error: `open` waits for somebody who writes to it.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        os.set_blocking(descriptor, True)
        file = os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
    if stat.S_ISREG(mode):
        return file
    with file:
        data = file.read(_MOST + 1)
    if not data:
        raise OSError(errno.EINVAL, "it is a pipe, and nobody writes to it", os.fspath(path))
    if len(data) > _MOST:
        raise OSError(errno.EFBIG, f"it is a pipe with more than {_MOST >> 30} GiB", os.fspath(path))
    return io.BytesIO(data)
