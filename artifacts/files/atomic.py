"""Atomic writing of files: temporary file beside the target, fsync, rename.

The temporary file is named `.heterocc-<hash of the target's name>-<random>.partial`. Its writer holds a lock on it
until it is renamed, so that the next writer of the same target can distinguish a file left by a killed process, which
it removes, from one that is being written.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path

from heterocc.artifacts.errors import OutputFileError
from heterocc.artifacts.files.earlier import EarlierFile
from heterocc.artifacts.files.leftovers import leftover, try_lock
from heterocc.artifacts.files.reading import refuse_input
from heterocc.artifacts.foreign import pass_foreign

_CHUNK = 16 * 2**20

_files: weakref.WeakSet[AtomicFile] = weakref.WeakSet()


def discard_all() -> None:
    """Discard every file that this process has not committed, before it exits."""
    for file in tuple(_files):
        file.discard()


_HINTS = {
    errno.ENOENT: "create the directory first",
    errno.ENOTDIR: "create the directory first",
    errno.EACCES: "choose a directory that you may write to",
    errno.EPERM: "choose a directory that you may write to",
    errno.EROFS: "choose a directory that you may write to",
    errno.ENOSPC: "free some space, or choose another disk",
    errno.EDQUOT: "free some space, or choose another disk",
    errno.EFBIG: "the file system or the process may not hold so large a file; choose another disk or raise the limit",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EBUSY: "run the command again",
}


class AtomicFile:
    """A new file that replaces `path` on `commit`; it is written sequentially, and by `patch`.

    Raises OutputFileError (HC111) for every OSError and for a path that is an input (`reading`). Unless `commit` was
    called, `discard` removes the temporary file; an existing file at `path` is unchanged until then. A symbolic link at
    `path` is followed. Without `durable` the file may be lost or empty after a power failure; that saves milliseconds,
    for a cache. With `compare` an existing file that has the same bytes stays and only gets a new time of change;
    nothing is written as long as both are equal.
    """

    def __init__(self, path: str | os.PathLike[str], *, durable: bool = True, compare: bool = False) -> None:
        self._shown = os.fspath(path)
        self._durable = durable
        self._earlier: EarlierFile | None = None
        with self._explained():
            self._path = Path(os.path.realpath(self._shown))
            refuse_input(self._shown)
            self._require_replaceable()
            self._prefix = f".heterocc-{hashlib.sha256(os.fsencode(self._path.name)).hexdigest()[:12]}-"
            self._remove_stale()
            self._temporary, self._fd = self._create()
        self.position = 0
        self._open = True
        self._earlier = EarlierFile.at(self._path) if compare else None
        _files.add(self)

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        view = memoryview(data).cast("B")
        with self._explained():
            if self._earlier is not None:
                if self._earlier.goes_on_with(view):
                    self.position += view.nbytes
                    return
                self._leave_earlier(self._earlier)
            while view.nbytes:
                written = os.write(self._fd, view[:_CHUNK])
                self.position += written
                view = view[written:]

    def keep(self, nbytes: int, sha256: str, crc: int) -> int | None:
        """Append the bytes that the existing file has at this place, if they have this SHA-256; only with `compare`.

        Returns the CRC-32 of what had `crc` with these bytes after it; None, and nothing is appended, if that file has
        others or what was written before was not the same.
        """
        if self._earlier is None:
            return None
        with self._explained():
            found = self._earlier.goes_on_with_digest(nbytes, sha256, crc)
        if found is not None:
            self.position += nbytes
        return found

    def patch(self, offset: int, data: bytes) -> None:
        """Overwrite bytes that were already written."""
        with self._explained():
            if self._earlier is not None:
                if self._earlier.patch(offset, data):
                    return
                self._leave_earlier(self._earlier)
            while data:
                written = os.pwrite(self._fd, data, offset)
                offset += written
                data = data[written:]

    @property
    def unfinished(self) -> Path:
        """The temporary file, which others may read before `commit`; not with `compare`, which may leave it empty."""
        return self._temporary

    def truncate(self, position: int) -> None:
        """Drop what was written from `position` on, and go on from there; not with `compare`."""
        with self._explained():
            os.ftruncate(self._fd, position)
            os.lseek(self._fd, position, os.SEEK_SET)
        self.position = position

    def commit(self) -> None:
        """Make the file durable, where that is wanted, and move it to its path."""
        with self._explained():
            if self._earlier is not None:
                self._refuse_input()
                if self._earlier.is_result(durable=self._durable):
                    self.discard()
                    return
                self._leave_earlier(self._earlier)
            if self._durable:
                os.fsync(self._fd)
            self._refuse_input()
            self._temporary.replace(self._path)
        self._open = False
        os.close(self._fd)
        if self._durable:
            self._sync_folder()

    def discard(self) -> None:
        """Remove the temporary file; does nothing after `commit`."""
        if self._open:
            self._open = False
            with contextlib.suppress(OSError):
                self._temporary.unlink()
            os.close(self._fd)
            self._close_earlier()

    def _leave_earlier(self, earlier: EarlierFile) -> None:
        # From here on the bytes differ: those before are written, too.
        earlier.copy_to(self._fd)
        self._close_earlier()

    def _close_earlier(self) -> None:
        if self._earlier is not None:
            self._earlier.close()
            self._earlier = None

    def _sync_folder(self) -> None:
        # The file is already complete; some file systems cannot sync a directory.
        with contextlib.suppress(OSError):
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def _require_replaceable(self) -> None:
        try:
            mode = self._path.stat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise OutputFileError(f"cannot write '{self._shown}': it is {kind}", hint="name a file")

    def _refuse_input(self) -> None:
        try:
            refuse_input(self._path)
        except OutputFileError:
            self.discard()
            raise

    def _create(self) -> tuple[Path, int]:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            temporary = self._path.parent / f"{self._prefix}{secrets.token_hex(8)}.partial"
            fd = os.open(temporary, flags, 0o666)
            if try_lock(fd) is not False and os.fstat(fd).st_nlink:
                return temporary, fd
            os.close(fd)  # another writer removed it as stale before it was locked

    def _remove_stale(self) -> None:
        for candidate in self._path.parent.glob(f"{self._prefix}*.partial"):
            with leftover(candidate) as stale:
                if stale:
                    candidate.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._abandon()
            pass_foreign(error)
            hint = _HINTS.get(error.errno or 0, "choose another place for the output")
            raise OutputFileError(f"cannot write '{self._shown}': {error.strerror or error}", hint=hint) from error
        except ValueError as error:  # a NUL in the path
            self._abandon()
            pass_foreign(error)
            raise OutputFileError(f"cannot write {self._shown!r}: {error}", hint="choose another name") from error

    def _abandon(self) -> None:
        if getattr(self, "_open", False):
            self.discard()
