"""Writing files: whole or not at all, with an error that says why."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from heterocc.artifacts.errors import OutputFileError


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write a file through a temporary one and a rename; OutputFileError when that fails, nothing is left behind."""
    raw = data.encode() if isinstance(data, str) else data
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:50]}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
        # mkstemp makes the file private; an output file has the permissions of any new file.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise OutputFileError(f"cannot write: {error.strerror}", where=str(path)) from error
