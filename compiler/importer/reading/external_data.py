"""External tensor data. No other module opens files that a model names.

A location is walked part by part from the model's own folder, without following any symbolic link, so that neither
`..` nor a link leads out of it. A file with a second hard link is refused as well: its other name may be anywhere.
Files are mapped read-only and stay mapped as long as an array refers to them.
"""

from __future__ import annotations

import errno
import hashlib
import math
import mmap
import os
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import cast

import numpy as np
import onnx
from onnx import helper

from heterocc.artifacts.errors import ExternalDataError
from heterocc.artifacts.files.reading import note_read
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.packed import PackedArray
from heterocc.compiler.importer.draft.draft import to_array

_PACKED = (
    ("INT4", 4),
    ("UINT4", 4),
    ("FLOAT4E2M1", 4),
    ("INT2", 2),
    ("UINT2", 2),
    ("FLOAT6E2M3", 6),
    ("FLOAT6E3M2", 6),
)
PACKED_BITS = {getattr(onnx.TensorProto, name): bits for name, bits in _PACKED if hasattr(onnx.TensorProto, name)}
"""Bits per element, in raw data, of the types whose elements share bytes."""

KEPT_PACKED = 1 << 16
"""Bytes from which integers of 4 bits stay two in a byte."""

_THREADS = 4


class ExternalData:
    """The external data files of one model, each opened and mapped once.

    Not thread-safe. Mappings outlive the object while arrays refer to them.
    """

    def __init__(
        self, model: Path, *, placed: bool = True, inside: Mapping[str, np.ndarray] = MappingProxyType({})
    ) -> None:
        """`placed` is false for a model that was given without a folder: it cannot have external data.

        `inside` has the bytes of initializers that are in the model's own file, by location (`split.py`).
        """
        self._model = model
        self._placed = placed
        self._inside = inside
        self._maps: dict[str, np.ndarray] = {}

    def array(self, tensor: onnx.TensorProto) -> np.ndarray:
        """The data of one tensor, read-only and mapped (copied only if its offset is not aligned to its type).

        Raises ExternalDataError (HC105) if the location is outside the model's folder or not a regular file, or lacks
        the bytes that the tensor's type and shape need.
        """
        entries = {e.key: e.value for e in tensor.external_data}
        where = f"{self._model.name}: tensor '{tensor.name}', external data '{entries.get('location', '')}'"
        if tensor.data_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
            raise ExternalDataError("a tensor of this type cannot have external data", where=where, hint=_SAVE_AGAIN)
        if any(d < 0 for d in tensor.dims):
            raise ExternalDataError("the tensor has a negative dimension", where=where, hint=_SAVE_AGAIN)
        data = self._map(entries.get("location", ""), where)
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        count = math.prod(tensor.dims)
        need = (count * PACKED_BITS.get(tensor.data_type, dtype.itemsize * 8) + 7) // 8
        offset = _number(entries, "offset", 0, where)
        length = _number(entries, "length", need, where)
        if length != need:
            raise ExternalDataError(
                f"the tensor needs {need} bytes, its entry says {length}", where=where, hint=_SAVE_AGAIN
            )
        if offset + length > data.size:
            raise ExternalDataError(
                f"bytes {offset} to {offset + length} are wanted, the file has {data.size}",
                where=where,
                hint="the file is cut short, or belongs to another model",
            )
        raw = data[offset : offset + length]
        if tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4) and need >= KEPT_PACKED:
            return cast(np.ndarray, PackedArray(raw, tensor.dims, dtype, is_signed=dtype.name == "int4"))
        if tensor.data_type in PACKED_BITS:
            return to_array(onnx.TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=raw.tobytes()))
        found = np.frombuffer(raw, dtype, count).reshape(tuple(tensor.dims))
        if not found.flags.aligned:
            found = found.copy()
            found.flags.writeable = False
        return found

    def digest(self, model_digest: str) -> str:
        """SHA-256 over the model file's own digest and every data file that was used; in order of location."""
        if not self._maps:
            return model_digest
        total = hashlib.sha256(bytes.fromhex(model_digest))
        locations = sorted(self._maps)
        with ThreadPoolExecutor(_THREADS) as pool:
            digests = pool.map(lambda location: hashlib.sha256(self._maps[location].data).digest(), locations)
        for location, digest in zip(locations, digests, strict=True):
            total.update(location.encode() + b"\0" + digest)
        return total.hexdigest()

    def _map(self, location: str, where: str) -> np.ndarray:
        if location in self._inside:
            return self._inside[location]
        if location not in self._maps:
            handle = self._open(location, where)
            note_read(self._model.parent / location, "the model's external data")
            try:
                size = os.fstat(handle).st_size
                # an empty file cannot be mapped
                mapped = mmap.mmap(handle, size, access=mmap.ACCESS_READ) if size else b""
            except OSError as error:
                pass_foreign(error)
                raise ExternalDataError(f"cannot map the file: {error.strerror}", where=where) from error
            finally:
                os.close(handle)
            self._maps[location] = np.frombuffer(mapped, np.uint8)
        return self._maps[location]

    def _open(self, location: str, where: str) -> int:
        """A descriptor of a regular file inside the model's folder."""
        if not self._placed:
            raise ExternalDataError(
                "a model that is given as bytes has no folder for external data",
                where=where,
                hint="give the model's path, or the folder as base_dir",
            )
        parts = PurePosixPath(location).parts
        if not parts or "\0" in location:
            raise ExternalDataError("the location is empty or malformed", where=where, hint=_SAVE_AGAIN)
        if location.startswith("/") or ".." in parts:
            raise ExternalDataError("the location leaves the model's folder", where=where, hint=_KEEP_BESIDE)
        try:
            handle = os.open(self._model.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            pass_foreign(error)
            raise ExternalDataError(
                f"cannot open the model's folder: {error.strerror}", where=where, hint="make the folder readable"
            ) from error
        try:
            for index, part in enumerate(parts):
                last = index == len(parts) - 1
                # non-blocking, so that a named pipe is refused below instead of waited for
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_NONBLOCK if last else os.O_DIRECTORY)
                try:
                    inner = os.open(part, flags, dir_fd=handle)
                except OSError as error:
                    pass_foreign(error)
                    raise _refusal(handle, part, error, where) from error
                os.close(handle)
                handle = inner
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ExternalDataError("the location is not a regular file", where=where, hint=_KEEP_BESIDE)
            if status.st_nlink > 1:
                raise ExternalDataError(
                    "the file has another hard link, which may be outside the model's folder",
                    where=where,
                    hint="copy the file instead of linking it",
                )
        except ExternalDataError:
            os.close(handle)
            raise
        return handle


_MAX_DIGITS = 40
"""The limit on digits of an offset or length; Python refuses to read numbers of thousands of digits."""

_SAVE_AGAIN = "save the model again with onnx.save_model(..., save_as_external_data=True)"
_KEEP_BESIDE = "keep external data in the model's own folder, as a plain file"


def _refusal(folder: int, part: str, error: OSError, where: str) -> ExternalDataError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(folder, part):
        return ExternalDataError(
            f"'{part}' is a symbolic link, which may lead outside the model's folder",
            where=where,
            hint="replace the link by a copy of the file",
        )
    if error.errno == errno.ENOENT:
        return ExternalDataError("the file is missing", where=where, hint="put it beside the model file")
    return ExternalDataError(f"cannot open the file: {error.strerror}", where=where, hint=_KEEP_BESIDE)


def _is_link(folder: int, part: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _number(entries: dict[str, str], key: str, default: int, where: str) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        raise ExternalDataError(f"{key} '{text[:_MAX_DIGITS]}' is not a number of bytes", where=where, hint=_SAVE_AGAIN)
    return int(text)
