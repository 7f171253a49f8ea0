"""Temporary folders that do not outlive the process, even if it is killed.

A folder is locked while it is used. Creating the first one in a process also removes folders that are not locked any
more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from heterocc.artifacts.errors import OutputFileError
from heterocc.artifacts.files.leftovers import leftover, try_lock
from heterocc.artifacts.foreign import pass_foreign

_PREFIX = "heterocc-work-"
_NAME = re.compile(re.escape(_PREFIX) + r"[a-z]+-\w{8}")

LEAST_ROOM = 8 << 20
"""The bytes that a folder must have room for. LLVM ends the process if it cannot write an object file."""

_lock = threading.Lock()
_used: set[Path] = set()
_swept: set[str] = set()


@contextlib.contextmanager
def scratch_folder(what: str) -> Iterator[Path]:
    """A new folder in the system's temporary directory, removed when the block ends.

    `what`, in lower-case letters, is part of its name. Raises OutputFileError (HC111) if it cannot be created, or its
    disk is full or nearly so, or files may not be large enough.
    """
    try:
        root = tempfile.gettempdir()
        with _lock:
            sweeps = root not in _swept
            _swept.add(root)
        if sweeps:
            remove_stale(Path(root))
        _require_room(root)
        folder, handle = _create(what, root)
    except OSError as error:
        pass_foreign(error)
        raise _no_space(error) from error
    try:
        yield folder
    except OSError as error:
        pass_foreign(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(error) from error
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _used.discard(folder)
        os.close(handle)


def remove_all() -> None:
    """Remove all folders of this process before it exits, and prevent threads from creating others."""
    _lock.acquire()
    for folder in (*_used, *_used):  # twice: threads are still writing
        shutil.rmtree(folder, ignore_errors=True)


def remove_stale(root: Path) -> None:
    """Remove the folders in `root` that killed processes of this user left behind."""
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                with leftover(Path(entry.path), folder=True) as stale:
                    if stale:
                        shutil.rmtree(entry.path, ignore_errors=True)


def _require_room(root: str) -> None:
    """Raise OSError unless files of `LEAST_ROOM` bytes may be written in a folder."""
    status = os.statvfs(root)
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if status.f_bavail * status.f_frsize < LEAST_ROOM:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if most != resource.RLIM_INFINITY and most < LEAST_ROOM:
        raise OSError(errno.EFBIG, f"the limit on the size of files is {most} bytes")


def _create(what: str, root: str) -> tuple[Path, int]:
    while True:
        with _lock:
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{what}-", dir=root))
            _used.add(folder)
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process removed it as stale before it was locked
            _used.discard(folder)
            continue
        if try_lock(handle) is not False and folder.is_dir():
            return folder, handle
        os.close(handle)
        _used.discard(folder)


def _no_space(error: OSError) -> OutputFileError:
    return OutputFileError(
        f"cannot use the temporary directory: {error.strerror or error}",
        where=os.environ.get("TMPDIR"),
        hint="free some space, or set TMPDIR to a directory with more",
    )
