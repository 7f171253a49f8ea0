"""Arrays in .npz files: what headers say of them is checked before their data is read, which a small file may inflate.

A member of 3 GB takes 3 MB in a file, so no data is read but that of arrays that the model takes, and of each array
only as many bytes as its header says.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from heterocc.artifacts.dtypes import NARROW, is_text
from heterocc.artifacts.errors import FeedError, FileMissingError, HeteroccError
from heterocc.artifacts.files.filetype import HEAD, file_kind
from heterocc.artifacts.files.opening import open_file
from heterocc.artifacts.files.reading import note_read
from heterocc.artifacts.files.source import reading_hint
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.manifest import TensorSpec
from heterocc.runtime.execute.narrow import narrow_dtype
from heterocc.runtime.feeds import InputCheck, TensorInfo, native, nearest
from heterocc.runtime.files.outputs import NAMES, read_names
from heterocc.runtime.plan.schedule import numpy_dtype

Array = np.ndarray[Any, Any]
Tensor = TensorSpec | TensorInfo

_MOST_HEADER = 1 << 14
"""The most bytes of a header, and of what is before it: numpy itself refuses headers of more than 10,000."""

_MOST_NAMES = 1 << 24
"""The most bytes of the list of names."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of an .npy file says of its array; `nbytes` are those of the header and of the data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int

    def require_fits(self, spec: Tensor | None, path: Path, size: int) -> None:
        """Raise FeedError if the array does not fit an input, or ValueError if a file of `size` bytes does not have it.

        What a run checks anyway, sizes that depend on each other for instance, is not checked here.
        """
        if self.dtype.hasobject:
            raise ValueError("it has Python objects")
        if self.dtype.itemsize == 0 and 0 not in self.shape:
            raise ValueError(f"its elements are {self.dtype}, of no bytes")
        if isinstance(spec, TensorInfo) and numpy_dtype(spec.dtype) is not None:
            # An array of this form that takes no memory.
            InputCheck(spec, str(path))(np.broadcast_to(np.zeros((), self.dtype), self.shape))
        elif isinstance(spec, TensorInfo) and not self._may_have_meaning(spec):
            got = f"{self.dtype}{list(self.shape)}"
            raise FeedError(f"input '{spec.name}' must be {spec.dtype} {spec.shape_text()}, got {got}", where=str(path))
        if self.nbytes > size:
            raise ValueError(f"{size} bytes, where the header says {self.nbytes}")

    def _may_have_meaning(self, spec: TensorInfo) -> bool:
        """Whether texts, or numbers of a dtype that numpy lacks, may be stored so."""
        if not InputCheck(spec, "").fits(self.shape):
            return False
        if spec.dtype in NARROW:
            return self.dtype.kind != "V" or self.dtype.itemsize == narrow_dtype(spec.dtype).itemsize
        return not is_text(spec.dtype) or self.dtype.kind in "UST"


def header_of(stream: IO[bytes]) -> Header:
    """The header of an .npy file, of which little more is read. Raises ValueError if it is none."""
    start = io.BytesIO(stream.read(_MOST_HEADER))
    version = np.lib.format.read_magic(start)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(start)
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape is {list(shape)}")
    return Header(tuple(shape), dtype, start.tell() + math.prod(shape) * dtype.itemsize)


def read_npz(
    path: Path, specs: Mapping[str, Tensor] | None = None, others: Collection[str] | None = None
) -> dict[str, Array]:
    """The arrays of an .npz file by name, in native byte order; with `specs` only those of these inputs, and `others`.

    Nothing is read before all of them fit by their headers. With `others` no more arrays may be in the file.

    Raises FileMissingError or FeedError.
    """
    with _opened(path) as (archive, members):
        wanted = [name for name in members if specs is None or name in (others or ()) or _is_of_one(name, specs)]
        unknown = None if others is None else next((name for name in members if name not in wanted), None)
        if unknown is not None:
            hint = nearest(unknown, specs or ())
            raise FeedError(f"the model has no input '{unknown}'", where=str(path), hint=hint)
        for name in wanted:
            size = archive.getinfo(members[name]).file_size
            _header(archive, members[name]).require_fits(None if specs is None else specs.get(name), path, size)
        return {name: _read(archive, members[name]) for name in wanted}


def npz_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all arrays of an .npz file, which are not read. Raises the errors of `read_npz`."""
    with _opened(path) as (archive, members):
        return {name: _header(archive, member).shape for name, member in members.items()}


@contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, str]]]:
    """An .npz file, and the names of its members by those of their arrays. Errors of reading are as for `read_npz`."""
    note_read(path, "the file of inputs")
    try:
        # numpy.load is not used, because it confuses names that end in .npy.
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            found = archive.namelist()
            names = _names(archive) if NAMES in found else {}
            yield archive, {names.get(m, m.removesuffix(".npy")): m for m in found if m != NAMES}
    except HeteroccError:
        raise
    except OSError as error:
        pass_foreign(error)
        what = f"cannot read inputs: {error.strerror or error}"
        raise FileMissingError(what, where=str(path), hint=reading_hint(error)) from error
    except Exception as error:
        pass_foreign(error)
        # numpy and zipfile raise ValueError, BadZipFile, EOFError or KeyError, depending on the damage.
        text = str(error)
        if path.is_file():
            with open_file(path) as stream:
                kind = file_kind(stream.read(HEAD))
                text = f"it is {kind}" if kind and not zipfile.is_zipfile(stream) else text
        hint = "numpy.savez(path, name=array, …) writes one"
        raise FeedError(f"not an .npz file of plain arrays: {text}", where=str(path), hint=hint) from error


def _names(archive: zipfile.ZipFile) -> dict[str, str]:
    if archive.getinfo(NAMES).file_size > _MOST_NAMES:
        raise ValueError(f"{NAMES} has more than {_MOST_NAMES} bytes")
    return read_names(archive.read(NAMES))


def _is_of_one(name: str, specs: Mapping[str, Tensor]) -> bool:
    """Whether an array is one of these inputs, or in one that is a sequence."""
    return name in specs or (name.endswith("]") and name.rpartition("[")[0] in specs)


def _header(archive: zipfile.ZipFile, member: str) -> Header:
    with archive.open(member) as stream:
        return header_of(stream)


def _read(archive: zipfile.ZipFile, member: str) -> Array:
    with archive.open(member) as stream:
        return native(np.lib.format.read_array(stream, allow_pickle=False))
