"""Atomic writing of files, never over an input, with an error that explains a failure."""

from __future__ import annotations

import os
from pathlib import Path

from heterocc.artifacts.errors import OutputFileError
from heterocc.artifacts.files.atomic import AtomicFile
from heterocc.artifacts.files.reading import refuse_input
from heterocc.artifacts.foreign import pass_foreign


def require_writable(target: Path, *, folder: bool = False) -> None:
    """Raise OutputFileError (HC111) if a path cannot be written, before any work is done.

    `folder` means that the path is a directory, which `make_folder` creates before the first write if it is missing.
    That of a file must exist, as a mistyped one would be created.
    """
    shown = str(target)
    if shown == "-":
        raise OutputFileError(
            "heterocc does not write to standard output", where=shown, hint="name a file; './-' is a file named '-'"
        )
    if not folder:
        refuse_input(target)
    try:
        if target.exists():
            if folder and not target.is_dir():
                raise OutputFileError("the output is not a directory", where=shown, hint="name a directory")
            if not folder and not target.is_file():
                kind = "a directory" if target.is_dir() else "not a regular file"
                raise OutputFileError(f"the output is {kind}", where=shown, hint="name a file")
        parent = target if folder and target.is_dir() else Path(os.path.realpath(target)).parent
        if not folder and not os.path.lexists(parent):
            raise OutputFileError(f"there is no folder '{parent}'", where=shown, hint="create it, or check the path")
        while not os.path.lexists(parent) and parent != parent.parent:
            parent = parent.parent
        if not parent.is_dir():
            raise OutputFileError(f"'{parent}' is not a directory", where=shown, hint="choose another place")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise OutputFileError(
                f"no permission to write in '{parent}'", where=shown, hint="choose a directory that you may write to"
            )
    except (OSError, ValueError) as error:  # a name too long, a NUL in it
        pass_foreign(error)
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OutputFileError(
            f"cannot write the output: {reason}", where=repr(shown), hint="choose another name"
        ) from error


def make_folder(folder: Path) -> None:
    """Create a directory and missing parents. Raises OutputFileError (HC111)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        pass_foreign(error)
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OutputFileError(
            f"cannot create the directory: {reason}", where=str(folder), hint="choose another place"
        ) from error


def atomic_write(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Write a file by way of a temporary file and a rename. Its directory is created if missing.

    `durable` is as for AtomicFile. Raises OutputFileError (HC111) if that fails or if `path` is an input; no temporary
    file remains then.
    """
    make_folder(path.parent)
    file = AtomicFile(path, durable=durable)
    try:
        file.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)
        file.commit()
    finally:
        file.discard()
