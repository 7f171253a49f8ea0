"""Files of a run's outputs: an .npz file or a directory of .npy files, for outputs of any name."""

from __future__ import annotations

import io
import json
import re
import unicodedata
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import is_narrow
from heterocc.artifacts.errors import OutputFileError
from heterocc.artifacts.files.reading import refuse_input
from heterocc.artifacts.files.texts import parse_json
from heterocc.artifacts.files.writing import atomic_write, require_writable
from heterocc.artifacts.foreign import pass_foreign
from heterocc.runtime.files.sequences import spread

NAMES = "names.json"
"""The file beside the arrays that maps changed file names to names of outputs, as JSON."""

_MAX_FILE_NAME = 200
"""Maximum bytes of a file's name without suffix; file systems allow 255 in total, also for the temporary file."""
_MAX_MEMBER_NAME = 60_000
"""Maximum bytes of a name in an .npz file; the zip format allows 65,535 in total."""
_PLAIN = re.compile(r"[\w-][\w.-]*")


def require_place(target: Path, outputs: Iterable[str]) -> None:
    """Raise OutputFileError (HC111) if these outputs cannot be written to a path, or would overwrite an input."""
    if _is_npz(target):
        require_writable(target)
        return
    if target.suffix and not target.is_dir() and str(target) != "-":
        raise OutputFileError(
            "neither an .npz file nor a directory",
            where=str(target),
            hint="name a file ending in .npz, or a directory without a suffix",
        )
    require_writable(target, folder=True)
    for file in (*file_names(outputs), NAMES):
        refuse_input(target / file)


def write_outputs(target: Path, results: Mapping[str, Any]) -> None:
    """Write outputs to an .npz file, or to one .npy file per output in a directory; each file is written atomically.

    Sequences are stored as `sequences` says. Names that files cannot have are changed, and recorded in `NAMES`.
    Raises OutputFileError (HC111).
    """
    require_place(target, results)
    arrays = {name: _storable(name, value, target) for name, value in spread(results).items()}
    if _is_npz(target):
        atomic_write(target, _npz(arrays))
        return
    files = file_names(arrays)
    for file, name in files.items():
        atomic_write(target / file, _npy(arrays[name]))
    known = _known_names(target / NAMES)
    changed = {file: name for file, name in files.items() if file != f"{name}.npy"}
    kept = {file: name for file, name in known.items() if file not in files}
    if changed or known:
        atomic_write(target / NAMES, _names_text({**kept, **changed}))


def file_names(outputs: Iterable[str]) -> dict[str, str]:
    """The outputs by file name. File names differ even if upper and lower case are not distinguished.

    An output whose name is a plain file name keeps it.
    """
    taken: set[str] = set()
    files: dict[str, str] = {}
    names = list(outputs)
    for name in sorted(names, key=lambda n: not _is_plain(n)):  # stable: plain names come first, and keep theirs
        stem = name if _is_plain(name) else _plain(name)
        free, number = stem, 2
        while _folded(free) in taken:
            free, number = f"{stem}-{number}", number + 1
        taken.add(_folded(free))
        files[f"{free}.npy"] = name
    order = {name: index for index, name in enumerate(names)}
    return dict(sorted(files.items(), key=lambda item: order[item[1]]))


def read_names(data: bytes) -> dict[str, str]:
    """Parse a file `NAMES`: names of outputs by file name. Raises ValueError for any other file."""
    names = parse_json(data.decode("utf-8"))
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{NAMES} does not map file names to names")
    return names


def _is_npz(target: Path) -> bool:
    return target.suffix.lower() == ".npz" and not target.is_dir()


def _is_plain(name: str) -> bool:
    return bool(_PLAIN.fullmatch(name)) and len(name.encode()) <= _MAX_FILE_NAME


def _plain(name: str) -> str:
    text = re.sub(r"[^\w.-]", "_", name)
    text = "_" + text[1:] if text.startswith(".") else text or "_"
    return text.encode()[:_MAX_FILE_NAME].decode("utf-8", "ignore")


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _storable(name: str, value: Any, target: Path) -> np.ndarray[Any, Any]:
    if is_narrow(value):
        raise OutputFileError(
            f"output '{name}' is {value.dtype}, which .npy cannot store", where=str(target), hint="use --json"
        )
    if isinstance(value, np.ndarray):
        if not value.dtype.hasobject:
            return value
        if all(isinstance(item, str) for item in value.flat):
            return value.astype(np.str_)
    raise OutputFileError(
        f"output '{name}' is not a tensor and cannot be stored as .npy", where=str(target), hint="use --json"
    )


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), allow_pickle=False)
    return buffer.getvalue()


def _npz(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """An .npz file as numpy.savez writes it, which cannot store outputs named `file` or `allow_pickle` itself."""
    buffer = io.BytesIO()
    changed: dict[str, str] = {}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for index, (name, array) in enumerate(arrays.items()):
            member = f"{name}.npy"
            if "\0" in name or len(name.encode("utf-8", "surrogatepass")) > _MAX_MEMBER_NAME:
                member = next(
                    m for i in range(len(arrays) + 1) if (m := f"output-{index}{'-' * i}.npy")[:-4] not in arrays
                )
                changed[member] = name
            # With the current date, equal outputs would give different bytes.
            with archive.open(zipfile.ZipInfo(member), "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)
        if changed:
            archive.writestr(zipfile.ZipInfo(NAMES), _names_text(changed))
    return buffer.getvalue()


def _names_text(names: Mapping[str, str]) -> str:
    return json.dumps(dict(names), indent=2) + "\n"


def _known_names(path: Path) -> dict[str, str]:
    try:
        return read_names(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        pass_foreign(error)
        raise OutputFileError(
            f"'{NAMES}' in this directory is not a file of heterocc", where=str(path), hint="choose an empty directory"
        ) from error
