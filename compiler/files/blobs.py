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

from heterocc.artifacts.errors import OutputFileError
from heterocc.artifacts.files.writing import atomic_write
from heterocc.compiler.files.records import cache_dir

FORMAT = 1
DEFAULT_MB = 512
"""The limit without `HETEROCC_CACHE_MB`."""

_FOLDER = f"code-v{FORMAT}"
_DIGEST = hashlib.sha256().digest_size
_STALE = 3600
"""The age in seconds from which a temporary file was left behind by a process that died."""


@dataclass(slots=True)
class DiskBlobs:
    """Files under `root`, of at most `limit` bytes together.

    `failure` is the reason why the last file could not be stored, or None. A compile continues without a cache.
    """

    root: Path
    limit: int
    failure: str | None = field(default=None, init=False)

    def _path(self, key: str) -> Path:
        return self.root / _FOLDER / key[:2] / key

    def read(self, key: str) -> bytes | None:
        """The stored bytes; None for a missing, damaged or foreign file. Counts as a use."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        content = data[_DIGEST:]
        if data[:_DIGEST] != _checksum(key, content):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return content

    def write(self, contents: Mapping[str, bytes]) -> None:
        """Store contents by key; then remove the files that were unused for the longest time, down to the limit."""
        try:
            for key, content in contents.items():
                if len(content) + _DIGEST > self.limit:
                    continue
                path = self._path(key)
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                atomic_write(path, _checksum(key, content) + content, durable=False)
        except (OSError, OutputFileError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            reason = cause.strerror if isinstance(cause, OSError) else error
            self.failure = f"the cache of compiled code in {self.root} cannot be written: {reason}"
        if contents:
            self._shrink()

    def _shrink(self) -> None:
        kept: list[tuple[int, Path, int]] = []
        oldest = time.time_ns() - _STALE * 10**9
        for folder, _, names in os.walk(self.root / _FOLDER):
            for path in (Path(folder) / name for name in names):
                with contextlib.suppress(OSError):
                    found = path.lstat()
                    if len(path.name) == 2 * _DIGEST:
                        kept.append((found.st_mtime_ns, path, found.st_size))
                    elif found.st_mtime_ns < oldest:  # a younger one is being written by another process
                        path.unlink()
        total = sum(size for _, _, size in kept)
        for _, path, size in sorted(kept):
            if total <= self.limit:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


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
