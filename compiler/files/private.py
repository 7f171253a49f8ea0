"""Files of a cache that only this user can have written.

Code from a cache is linked into bundles, which may then be signed. So a folder that others can write is not used, and
neither is a file of another user, one that others can write, or one that is not a regular file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def objection_to(root: Path) -> str | None:
    """The reason why a folder is not used as a cache, with what to do; None if only this user can write it.

    A folder that does not exist yet is created for this user alone.
    """
    try:
        place = Path(os.path.realpath(root))
        while not os.path.lexists(place) and place != place.parent:
            place = place.parent
        status = place.stat()
        if place == Path(os.path.realpath(root)):
            if not stat.S_ISDIR(status.st_mode):
                return f"the cache {root} is not used: it is not a folder; name another one with HETEROCC_CACHE"
            if status.st_uid != os.geteuid():
                return f"the cache {root} is not used: it belongs to another user; name another one with HETEROCC_CACHE"
            if status.st_mode & _OTHERS:
                return f"the cache {root} is not used: other users can write it; `chmod go-w {root}` changes that"
            place = place.parent
        for folder in (place, *place.parents):
            mode = folder.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                return (
                    f"the cache {root} is not used: all users can write {folder}; name another one with HETEROCC_CACHE"
                )
    except (OSError, ValueError):
        return None  # it cannot be read either
    return None


def read_private(path: Path, most: int | None = None) -> bytes | None:
    """The bytes of a file that only this user can write; None for any other, and for one of more than `most` bytes."""
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        private = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _OTHERS
        if not private or (most is not None and status.st_size > most):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    except OSError:
        return None
    finally:
        os.close(descriptor)


def write_private(path: Path, data: bytes) -> None:
    """Write a file for this user alone under a temporary name, and rename it. Missing folders are created likewise.

    Raises OSError. An AtomicFile takes half a millisecond more, and a compile writes hundreds.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        descriptor = os.open(temporary, _NEW, 0o600)
    except FileNotFoundError:
        _make_folders(path.parent)
        descriptor = os.open(temporary, _NEW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _make_folders(folder: Path) -> None:
    """Create a folder and missing ones above it; `Path.mkdir` would give those the permissions of the umask."""
    if not folder.parent.exists():
        _make_folders(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
