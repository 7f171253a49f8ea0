"""Temporary files and folders left behind by killed processes: those of this user that no process has locked.

The creator of one locks it with `try_lock` and keeps the descriptor open while it is in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def try_lock(fd: int) -> bool | None:
    """Return whether the exclusive lock was acquired, or None if the file system does not support locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def leftover(path: Path, *, folder: bool = False) -> Iterator[bool]:
    """Yield whether a regular file (or a `folder`) may be removed; no other process can lock it in the block."""
    flags = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_RDWR | os.O_NONBLOCK
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        yield False
        return
    try:
        info = os.fstat(fd)
        kind = stat.S_ISDIR if folder else stat.S_ISREG
        yield kind(info.st_mode) and info.st_uid == os.geteuid() and bool(try_lock(fd))
    finally:
        os.close(fd)
