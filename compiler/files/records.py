"""A cache of small records on disk, for facts about this machine.

Each record is a small JSON file, written completely and then renamed, so that readers see an old file, a new file or
none. A damaged file counts as missing. `HETEROCC_CACHE` names the directory, or is `off`; the default is `heterocc` in
the XDG cache directory.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heterocc.compiler.files.private import objection_to, read_private, write_private

FORMAT = 1
MAX_PER_SHARD = 64
"""Maximum files in each of 256 shards: 16384 records, below 64 MiB on any file system with blocks of 4 KiB."""
MAX_RECORD_BYTES = 4096
SOURCES = (
    "artifacts",
    "compiler/devices",
    "compiler/files",
    "compiler/importer",
    "compiler/lower",
    "compiler/operators",
    "compiler/symbolic",
    "compiler/support",
    "passes",
    "runtime",
)
"""Folders and files below `heterocc` that a trial lowering imports, directly or indirectly."""


@dataclass(slots=True)
class DiskRecords:
    """Records of one `kind`, small JSON objects in files under `root`. Safe to use from several processes.

    `failure` is the reason why the last record could not be stored, or None. A compile continues without a cache, as it
    does with one that others can write (`objection_to`).
    """

    root: Path
    kind: str
    failure: str | None = field(default=None, init=False)
    _refused: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.failure = objection_to(self.root)
        self._refused = self.failure is not None

    def _path(self, key: str) -> Path:
        return self.root / f"{self.kind}-v{FORMAT}" / key[:2] / f"{key}.json"

    def read(self, key: str) -> dict[str, object] | None:
        """The stored record; None for a missing, damaged or foreign file."""
        data = None if self._refused else read_private(self._path(key), MAX_RECORD_BYTES)
        try:
            record = None if data is None else json.loads(data)
        except (ValueError, RecursionError):
            return None
        return record if isinstance(record, dict) and record.get("key") == key else None

    def write(self, key: str, record: Mapping[str, object]) -> None:
        """Store a record under a temporary name and rename it; then drop the shard's oldest files beyond its size."""
        if self._refused:
            return
        path = self._path(key)
        data = json.dumps({"key": key, **record}).encode()
        try:
            write_private(path, data)
            _shrink(path.parent)
        except OSError as error:
            self.failure = f"the {self.kind} cache in {self.root} cannot be written: {error.strerror}"


def _shrink(shard: Path) -> None:
    with os.scandir(shard) as found:
        if sum(1 for _ in found) <= MAX_PER_SHARD:
            return
    ages: list[tuple[int, str, Path]] = []
    for file in shard.iterdir():
        with contextlib.suppress(OSError):
            ages.append((file.stat().st_mtime_ns, file.name, file))
    for _, _, file in sorted(ages)[: max(0, len(ages) - MAX_PER_SHARD)]:
        with contextlib.suppress(OSError):
            file.unlink()


def cache_dir() -> Path | None:
    """The directory of the cache, or None if `HETEROCC_CACHE` is `off` or there is no home directory."""
    named = os.environ.get("HETEROCC_CACHE", "")
    if named.lower() == "off":
        return None
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "heterocc"
    try:
        return Path.home() / ".cache" / "heterocc"
    except RuntimeError:
        return None


def open_records(kind: str) -> DiskRecords | None:
    """The records of a kind in the cache directory, or None if there is no cache."""
    root = cache_dir()
    return None if root is None else DiskRecords(root, kind)


_INCLUDED: list[Path] = []


def include_source(path: Path) -> None:
    """Let records depend on a file that is not heterocc's own, too: an operator that a program adds."""
    _INCLUDED.append(path)
    toolchain_digest.cache_clear()


@functools.cache
def toolchain_digest(*more: str) -> str:
    """SHA-256 of everything that a record depends on besides node and target.

    It covers the versions of heterocc, TVM, onnx and ONNX Runtime, and the sources that determine a lowering
    (`SOURCES`), are in other folders and files below `heterocc` (`more`), or are included. After a change to any of
    them, all trials are repeated.
    """
    if more:
        return _with_sources(hashlib.sha256(toolchain_digest().encode()), more)
    digest = hashlib.sha256(f"format {FORMAT}\n".encode())
    for package in ("heterocc", "apache-tvm", "apache-tvm-ffi", "onnx", "onnxruntime"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = "none"
        digest.update(f"{package} {version}\n".encode())
    for path in _INCLUDED:
        digest.update(path.read_bytes())
    return _with_sources(digest, SOURCES)


def _with_sources(digest: hashlib._Hash, sources: Sequence[str]) -> str:
    root = Path(__file__).parents[2]
    for name in (n for source in sources for n in _python_files(root, source)):
        with (root / name).open("rb", buffering=0) as file:  # hundreds of small ones
            data = file.read()
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def _python_files(root: Path, source: str) -> list[str]:
    """The Python files of a folder or file, as sorted paths relative to `root`."""
    if source.endswith(".py"):
        return [source]
    found: list[str] = []
    # os.walk is twice as fast as Path.rglob on these hundreds of files.
    for folder, _, files in os.walk(root / source):
        place = Path(folder).relative_to(root).as_posix()
        found += [f"{place}/{name}" for name in files if name.endswith(".py")]
    return sorted(found)
