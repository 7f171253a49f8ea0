"""The file that an atomic write would replace, compared with what is written.

As long as both are equal nothing needs to be written: a large bundle that is compiled again with the same result is
left as it is. Storing it again would take longer than everything else that such a compile does.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

HEAD = 1 << 16
"""The number of bytes at the start that are kept in memory and compared last: until then they may be patched."""

_PIECE = 1 << 20


class EarlierFile:
    """A file whose first bytes, up to `position`, are what was written so far; its first `HEAD` bytes are in `head`."""

    def __init__(self, path: Path, fd: int) -> None:
        """Take over `fd`, an open file of at least `HEAD` bytes that `path` names."""
        self.head = bytearray()
        self.position = 0
        self._path = path
        self._fd = fd
        self._state = _state(os.fstat(fd))
        self._buffer = bytearray(_PIECE)

    @classmethod
    def at(cls, path: Path) -> Self | None:
        """The file at a path without symbolic links; None if there is none that can be read and is large enough."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_size >= HEAD:
            return cls(path, fd)
        os.close(fd)
        return None

    def goes_on_with(self, view: memoryview) -> bool:
        """Whether the file has these bytes next; if so they count as written, else nothing changes."""
        held = len(self.head)
        start = min(HEAD - held, view.nbytes)
        for done in range(start, view.nbytes, _PIECE):
            piece = view[done : done + _PIECE]
            read = os.preadv(self._fd, [self._buffer], self.position + done)
            # `startswith` compares memory; `==` of memory views compares element by element.
            if read < piece.nbytes or not self._buffer.startswith(piece):
                return False
        self.head += view[:start]
        self.position += view.nbytes
        return True

    def goes_on_with_digest(self, nbytes: int, sha256: str, crc: int) -> int | None:
        """Whether the file has bytes with this SHA-256 next; if so they count as written.

        Returns the CRC-32 of what had `crc` with these bytes after it; None if the digest is another one.
        """
        start, end = self.position, self.position + nbytes
        if os.fstat(self._fd).st_size < end:
            return None
        with ThreadPoolExecutor(1) as pool:
            digest = pool.submit(self._sha256, start, end)
            for piece in self._pieces(start, end):
                crc = zlib.crc32(piece, crc)
            if digest.result() != sha256:
                return None
        self.head += os.pread(self._fd, min(HEAD - len(self.head), nbytes), start)
        self.position = end
        return crc

    def _sha256(self, start: int, end: int) -> str:
        found = hashlib.sha256()
        for piece in self._pieces(start, end):
            found.update(piece)
        return found.hexdigest()

    def _pieces(self, start: int, end: int) -> Iterator[memoryview]:
        """The bytes between two positions, in pieces that are valid until the next one; fewer if the file ends."""
        buffer = memoryview(bytearray(min(_PIECE, end - start)))
        while start < end:
            read = os.preadv(self._fd, [buffer[: end - start]], start)
            if not read:
                return
            yield buffer[:read]
            start += read

    def patch(self, offset: int, data: bytes) -> bool:
        """Overwrite bytes of the head; False, without a change, if some of them are not there."""
        if offset + len(data) > len(self.head):
            return False
        self.head[offset : offset + len(data)] = data
        return True

    def is_result(self, *, durable: bool) -> bool:
        """Whether the path still names this file and it has the bytes written and no others; if so, it gets a new time.

        With `durable` its contents have reached the disk.
        """
        try:
            if os.fstat(self._fd).st_size != self.position or os.pread(self._fd, HEAD, 0) != self.head:
                return False
            if durable:
                os.fsync(self._fd)
            # A change by another process while the file was compared shows in its state.
            if _state(os.fstat(self._fd)) != self._state or _state(os.lstat(self._path)) != self._state:
                return False
            os.utime(self._fd)
        except OSError:
            return False
        return True

    def copy_to(self, fd: int) -> None:
        """Append what was written so far to an empty file.

        Raises OSError if another process changed the earlier file since it was opened.
        """
        os.write(fd, self.head)
        done = len(self.head)
        while done < self.position:
            piece = os.pread(self._fd, min(_PIECE, self.position - done), done)
            if not piece:
                break
            while piece:
                written = os.write(fd, piece)
                done += written
                piece = piece[written:]
        if _state(os.fstat(self._fd)) != self._state:
            raise OSError(errno.EBUSY, "another process changed the file meanwhile")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
