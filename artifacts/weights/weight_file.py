"""The file of weights at the start of a bundle: tensors one after another, each at a multiple of the alignment."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from heterocc.artifacts.container import PAGE, local_header
from heterocc.artifacts.errors import InternalError
from heterocc.artifacts.files.atomic import AtomicFile
from heterocc.artifacts.manifest import WEIGHTS_NAME
from heterocc.artifacts.weights.tensors import aligned

_CHUNK = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Written:
    """A tensor in the file: the SHA-256 and the number of its bytes, and the offset of the first.

    `end` is the position after it in the bundle, `crc` the checksum of the file of weights up to there.
    """

    sha256: str
    nbytes: int
    offset: int
    end: int
    crc: int


class Draft:
    """A complete bundle that was not moved to its path, so that the final one for that path takes over its weights.

    A compile checks a bundle with the weights of the final one before it writes that. Use as a context manager: a file
    that no final bundle took is removed at the end.
    """

    def __init__(self, target: Path) -> None:
        """`target` is the path of the final bundle."""
        self.target = target
        self._file: AtomicFile | None = None
        self._written: tuple[Written, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.discard()

    @property
    def path(self) -> Path | None:
        """The complete bundle; None before it is written, and after it was taken."""
        return None if self._file is None else self._file.unfinished

    def keep(self, file: AtomicFile, written: Sequence[Written]) -> None:
        """Take a complete file. Raises InternalError if there is one."""
        if self._file is not None:
            raise InternalError("a draft of a bundle was written twice")
        self._file, self._written = file, tuple(written)

    def take(self) -> tuple[AtomicFile, tuple[Written, ...]] | None:
        """Give the file and its tensors away; None if there is none."""
        found = None if self._file is None else (self._file, self._written)
        self._file = None
        return found


class WeightFile:
    """The file of weights of a bundle under construction. Not thread-safe.

    `written` are the tensors so far, `end` the position in the bundle after them, `crc` their checksum.
    """

    def __init__(self, path: str | os.PathLike[str], *, durable: bool, draft: Draft | None, compare: bool) -> None:
        """`draft` is a bundle for the same path: tensors that it has at the same places are not written again.

        `durable` and `compare` are those of an AtomicFile. Raises OutputFileError (HC111) if it cannot be written.
        """
        taken = None if draft is None else draft.take()
        self.file, shared = taken or (AtomicFile(path, durable=durable, compare=compare), ())
        self.written: list[Written] = []
        self.end = PAGE
        self.crc = 0
        self._ahead = list(reversed(shared))
        self._begun = taken is None
        if self._begun:
            try:
                self.file.write(bytes(PAGE))  # the header, known in `close`
            except BaseException:
                self.file.discard()
                raise

    def append(self, data: memoryview, sha256: str) -> int:
        """Add the bytes of a tensor, and return their offset; that of no bytes is 0."""
        if not data.nbytes:
            return 0
        following = self._ahead.pop() if self._ahead else None
        if following is None or (following.sha256, following.nbytes) != (sha256, data.nbytes):
            following = self._write(data, sha256)
        self.written.append(following)
        self.end, self.crc = following.end, following.crc
        return following.offset

    def append_known(self, nbytes: int, sha256: str) -> int | None:
        """Add a tensor of which only the digest is known, if the bundle that is replaced has it at this place.

        Returns its offset; None, and nothing is added, if it does not, or there is none.
        """
        if not self._begun or not nbytes:
            return None
        offset = self._pad()
        crc = self.file.keep(nbytes, sha256, self.crc)
        if crc is None:
            return None
        self.end, self.crc = self.file.position, crc
        self.written.append(Written(sha256, nbytes, offset, self.end, crc))
        return offset

    def close(self) -> None:
        """Write the header: nothing can be added after it."""
        self._leave_draft()
        self.file.patch(0, local_header(WEIGHTS_NAME, self.end - PAGE, self.crc, PAGE))

    def _write(self, data: memoryview, sha256: str) -> Written:
        self._leave_draft()
        offset, crc = self._pad(), self.crc
        for start in range(0, data.nbytes, _CHUNK):
            chunk = data[start : start + _CHUNK]
            crc = zlib.crc32(chunk, crc)
            self.file.write(chunk)
        return Written(sha256, data.nbytes, offset, self.file.position, crc)

    def _pad(self) -> int:
        """Write zeros up to where a tensor may be, and return this offset."""
        offset = aligned(self.end - PAGE)
        padding = bytes(offset + PAGE - self.end)
        self.file.write(padding)
        self.end, self.crc = offset + PAGE, zlib.crc32(padding, self.crc)
        return offset

    def _leave_draft(self) -> None:
        if not self._begun:
            self._begun = True
            self._ahead.clear()
            self.file.truncate(self.end)
