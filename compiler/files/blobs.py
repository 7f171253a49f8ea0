"""A bounded cache of files on disk: compiled kernels and partitions, by key.

`HETEROCC_CACHE` names its directory, as for records; `HETEROCC_CACHE_MB` is its limit in MiB. What was not used for the
longest time is removed first. Files are written completely and then renamed, and begin with a checksum: a damaged file
counts as missing. Safe to use from several processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heterocc.compiler.files.private import objection_to, read_private, write_private
from heterocc.compiler.files.records import cache_dir

FORMAT = 1
DEFAULT_MB = 512
"""The limit without `HETEROCC_CACHE_MB`."""

_FOLDER = f"code-v{FORMAT}"
_DIGEST = hashlib.sha256().digest_size
_STALE = 3600
"""The age in seconds from which a temporary file was left behind by a process that died."""
_SLACK = 16
"""A sixteenth of the limit may be written before the files are counted again: 10,000 files take 0.1 s."""
_UNIT = 1024


@dataclass(slots=True)
class DiskBlobs:
    """Files under `root`, of at most `limit` bytes together.

    `failure` is the reason why the last file could not be stored, or None. A compile continues without a cache, as it
    does with one that others can write (`objection_to`).
    """

    root: Path
    limit: int
    failure: str | None = field(default=None, init=False)
    _refused: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.failure = objection_to(self.root)
        self._refused = self.failure is not None

    def _path(self, key: str) -> Path:
        return self.root / _FOLDER / key[:2] / key

    def read(self, key: str) -> bytes | None:
        """The stored bytes; None for a missing, damaged or foreign file. Counts as a use."""
        path = self._path(key)
        data = None if self._refused else read_private(path)
        if data is None:
            return None
        content = data[_DIGEST:]
        if data[:_DIGEST] != _checksum(key, content):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return content

    def write(self, contents: Mapping[str, bytes]) -> None:
        """Store contents by key, and keep the limit: the files that were unused for the longest time are removed."""
        written = 0
        if self._refused:
            return
        try:
            for key, content in contents.items():
                if len(content) + _DIGEST > self._kept:
                    continue
                path = self._path(key)
                write_private(path, _checksum(key, content) + content)
                written += len(content) + _DIGEST
        except OSError as error:
            self.failure = f"the cache of compiled code in {self.root} cannot be written: {error.strerror}"
        if written and self._is_due(written):
            self._shrink()

    @property
    def _kept(self) -> int:
        """The bytes that a count leaves: what is written until the next one fits beside them."""
        return self.limit - self.limit // _SLACK

    @property
    def _growth(self) -> Path:
        """A file with a byte for each KiB that was written since the files were counted last."""
        return self.root / f"{_FOLDER}.growth"

    def _is_due(self, written: int) -> bool:
        """Add to what was written, and return whether it is time to count the files again."""
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # it may be a pipe
            descriptor = os.open(self._growth, flags)
        except OSError:
            return True
        try:
            os.write(descriptor, b"0" * -(-written // _UNIT))
            return os.fstat(descriptor).st_size * _UNIT > self.limit // _SLACK
        except OSError:
            return True
        finally:
            os.close(descriptor)

    def _shrink(self) -> None:
        kept: list[tuple[int, str, int]] = []
        oldest = time.time_ns() - _STALE * 10**9
        for folder in _entries(self.root / _FOLDER):
            for entry in _entries(folder.path):
                with contextlib.suppress(OSError):
                    found = entry.stat(follow_symlinks=False)
                    if len(entry.name) == 2 * _DIGEST:
                        kept.append((found.st_mtime_ns, entry.path, found.st_size))
                    elif found.st_mtime_ns < oldest:  # a younger one is being written by another process
                        Path(entry.path).unlink()
        total = sum(size for _, _, size in kept)
        for _, path, size in sorted(kept):
            if total <= self._kept:
                break
            with contextlib.suppress(OSError):
                Path(path).unlink()
            total -= size
        with contextlib.suppress(OSError):
            write_private(self._growth, b"")


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _checksum(key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(f"{key}\n".encode())
    digest.update(content)
    return digest.digest()


def open_blobs() -> DiskBlobs | None:
    """The cache of compiled code, or None if there is none or its limit is 0."""
    root = cache_dir()
    limit = cache_limit()
    return None if root is None or limit == 0 else DiskBlobs(root, limit)


def cache_limit() -> int:
    """The limit in bytes that `HETEROCC_CACHE_MB` sets; the default if it is not a number of MiB."""
    text = os.environ.get("HETEROCC_CACHE_MB", "").strip()
    return (int(text) if text.isdecimal() and len(text) < 10 else DEFAULT_MB) * 2**20
