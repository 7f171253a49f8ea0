"""From a file or bytes to an ONNX proto."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import numpy as np
import onnx

from heterocc.artifacts.errors import FileMissingError, Hint, NotOnnxError
from heterocc.artifacts.files.filetype import BUNDLE, HEAD, ONNX, TEXT, file_kind
from heterocc.artifacts.files.reading import note_read
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.importer.reading.split import LEAST, Parts, split_file
from heterocc.compiler.importer.reading.tensors import check_model

_MAX_FILE = 2**31 - 1
"""Protobuf's limit on one message; a larger model keeps its weights in external data."""


_CONVERT = {
    ".pb": "a TensorFlow graph is converted by tf2onnx: python -m tf2onnx.convert",
    ".pt": "export the model to ONNX: torch.onnx.export",
    ".pth": "export the model to ONNX: torch.onnx.export",
}
"""Hints for files that are not ONNX, by extension."""


@dataclass(frozen=True, slots=True)
class ParsedParts:
    """A model whose large initializers may be external, at the locations in `inside`, which has their bytes.

    `digest` gives the SHA-256 of the file in hex; it waits until that is computed.
    """

    model: onnx.ModelProto
    inside: Mapping[str, np.ndarray]
    digest: Callable[[], str]


def parse(source: ModelSource) -> tuple[onnx.ModelProto, str]:
    """The model as written, and the SHA-256 of its bytes in hex.

    Raises FileMissingError (HC101) if the file cannot be read, NotOnnxError (HC102) if it is not an ONNX model or is
    cut short, and InvalidGraphError (HC103) if its tensors are malformed.
    """
    data = _bytes_of(source)
    return _parse(data, source.path), hashlib.sha256(data).hexdigest()


def parse_apart(source: ModelSource) -> ParsedParts:
    """The model with the data of large initializers apart, if its file has such; as `parse` otherwise.

    Raises the errors of `parse`.
    """
    parts = _parts_of(source.path) if source.data is None else None
    if parts is None:
        model, digest = parse(source)
        return ParsedParts(model, {}, lambda: digest)
    return ParsedParts(_parse(parts.rest, source.path), parts.inside, parts.digest)


def _parts_of(path: Path) -> Parts | None:
    """The parts of a large file; None for one that is read as a whole, which says what is wrong with it."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or not LEAST <= status.st_size <= _MAX_FILE:
            return None
        note_read(path, "the model")
        return split_file(path, status.st_size)
    except OSError:
        return None


def read_proto(source: ModelSource) -> tuple[onnx.ModelProto, int]:
    """The model as written, and its size in bytes. Raises the errors of `parse`."""
    data = _bytes_of(source)
    return _parse(data, source.path), len(data)


def _bytes_of(source: ModelSource) -> bytes:
    return _file_bytes(source.path) if source.data is None else _given_bytes(source.data)


def _file_bytes(path: Path) -> bytes:
    shown = str(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise FileMissingError("the model is a directory", where=shown, hint="name the .onnx file inside it")
        if not stat.S_ISREG(status.st_mode):
            raise FileMissingError("the model is not a regular file", where=shown, hint="name a .onnx file")
        if status.st_size == 0:
            raise NotOnnxError("the file is empty", where=shown, hint="export or download the model again")
        if status.st_size > _MAX_FILE:
            raise NotOnnxError(
                "the file is larger than 2 GB, the limit of ONNX's file format",
                where=shown,
                hint="save the weights as external data: onnx.save_model(..., save_as_external_data=True)",
            )
        note_read(path, "the model")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FileMissingError("there is no such file", where=shown, hint="check the path") from error
    except OSError as error:
        pass_foreign(error)
        hint = (
            f"allow this user to read it: chmod u+r {quote(shown)}"
            if isinstance(error, PermissionError)
            else "check the path"
        )
        raise FileMissingError(f"cannot read the model: {error.strerror}", where=shown, hint=hint) from error


def _given_bytes(data: bytes) -> bytes:
    if not data:
        raise NotOnnxError("the model is empty: no bytes are given", hint="give the bytes of an ONNX file")
    if len(data) > _MAX_FILE:
        raise NotOnnxError(
            "the model is larger than 2 GB, the limit of ONNX's file format",
            hint="save the weights as external data, and give the model's path",
        )
    return data


def _parse(data: bytes, path: Path) -> onnx.ModelProto:
    shown = str(path)
    kind = file_kind(data[:HEAD])
    if kind is not None and kind not in (ONNX, TEXT):
        raise _foreign(kind, shown)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf has one error class per implementation
        pass_foreign(error)
        if kind == TEXT:
            raise _foreign(kind, shown) from error
        raise NotOnnxError(
            "the file is not an ONNX model, or it is cut short",
            where=shown,
            hint=_CONVERT.get(path.suffix.lower(), "export or download the model again"),
        ) from error
    if not model.HasField("graph"):
        raise NotOnnxError("the file holds no ONNX graph", where=shown, hint="export or download the model again")
    if not model.opset_import:
        # written after the graph, so a truncated file lacks it
        raise NotOnnxError(
            "the model names no operator set: the file may be cut short",
            where=shown,
            hint="export or download the model again",
        )
    check_model(model, path.name)
    return model


def _foreign(kind: str, shown: str) -> NotOnnxError:
    """The error for a file that is something else."""
    hint = "export the model to ONNX"
    if kind == BUNDLE:
        hint = Hint(f"it is compiled already: load({shown!r})", f"it is compiled already: heterocc run {quote(shown)}")
    elif "LFS" in kind:
        hint = "fetch the file itself: git lfs pull"
    elif kind.startswith("compressed") or "archive" in kind or "inside" in kind:
        hint = "unpack it first, and name the .onnx file"
    elif "PyTorch" in kind:
        hint = "export the model to ONNX: torch.onnx.export"
    elif "numpy" in kind:
        hint = Hint("name the .onnx file; inputs are given as `inputs`", "name the .onnx file; inputs go to --inputs")
    elif kind == TEXT:
        hint = Hint(
            "name the .onnx file; affinity and device files are given as `affinity` and `device_files`",
            "name the .onnx file; affinity and device files go to --affinity and --device-file",
        )
    elif "HTML" in kind:
        hint = "download the model again"
    return NotOnnxError(f"the file is {kind}, not an ONNX model", where=shown, hint=hint)
