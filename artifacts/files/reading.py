"""The files that a command reads, which its outputs must not overwrite.

A file is identified by device and inode, so that a hard link, a symbolic link and another spelling of the path are the
same file, and by its path, so that a file that is replaced in the meantime still counts as the input.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from heterocc.artifacts.errors import OutputFileError

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class _Read:
    role: str
    shown: str
    real: str
    identity: tuple[int, int] | None


_reads: ContextVar[list[_Read] | None] = ContextVar("heterocc_reads", default=None)


@contextlib.contextmanager
def reading(files: Mapping[AnyPath, str]) -> Iterator[None]:
    """Protect `files` (path → role, such as "the model") and those added by `note_read` while the block runs.

    Blocks nest: an inner block keeps the inputs of the outer one. Each thread has separate inputs.
    """
    token = _reads.set(list(_reads.get() or ()))
    try:
        for path, role in files.items():
            note_read(path, role)
        yield
    finally:
        _reads.reset(token)


def note_read(path: AnyPath, role: str) -> None:
    """Register a file as an input. Does nothing outside a `reading` block, or if the path does not exist."""
    reads = _reads.get()
    if reads is None:
        return
    with contextlib.suppress(ValueError):  # a NUL in the path, which opening the file reports
        reads.append(_Read(role, os.fspath(path), os.path.realpath(path), _identity(path)))


def refuse_input(target: AnyPath) -> None:
    """Raise OutputFileError (HC111) if `target` is one of the inputs."""
    reads = _reads.get()
    if not reads:
        return
    identity, real = _identity(target), os.path.realpath(target)
    for read in reads:
        if read.real == real or (identity is not None and read.identity == identity):
            raise OutputFileError(
                f"the output '{os.fspath(target)}' is {read.role}, '{read.shown}', and would overwrite it",
                where=os.fspath(target),
                hint="give the output another name",
            )


def _identity(path: AnyPath) -> tuple[int, int] | None:
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
