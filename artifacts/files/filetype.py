"""Detection of a file's type by its first bytes, for errors about files of an unexpected type."""

from __future__ import annotations

import re
import struct
from pathlib import Path

HEAD = 1024
"""Number of bytes that `file_kind` inspects."""


def is_file(path: Path) -> bool:
    """Whether a path is that of a file; no where the system does not say, as opening it then has the reason."""
    try:
        return path.is_file()
    except OSError:
        return False


BUNDLE = "a heterocc bundle"
ONNX = "an ONNX model"
EMPTY = "empty"
TEXT = "a text file"
ZIP = "a zip file"

_MAGIC = (
    (b"version https://git-lfs", 0, "a Git LFS pointer, not the file itself"),
    (b"\x89HDF\r\n", 0, "an HDF5 file (a Keras model?)"),
    (b"TFL3", 4, "a TensorFlow Lite model"),
    (b"ORTM", 4, "a model in ONNX Runtime's own format"),
    (b"\x93NUMPY", 0, "a numpy array (.npy)"),
    (b"GGUF", 0, "a GGUF model"),
    (b'{"', 8, "a safetensors file, which has weights but no graph"),
    (b"\x1f\x8b", 0, "compressed with gzip"),
    (b"BZh", 0, "compressed with bzip2"),
    (b"\xfd7zXZ", 0, "compressed with xz"),
    (b"\x28\xb5\x2f\xfd", 0, "compressed with zstd"),
    (b"7z\xbc\xaf", 0, "a 7z archive"),
    (b"ustar", 257, "a tar archive"),
    (b"\x7fELF", 0, "a program or a shared library"),
    (b"%PDF", 0, "a PDF document"),
    (b"\x89PNG", 0, "an image"),
    (b"\xff\xd8\xff", 0, "an image"),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05](?:\x95|[\x8a\x8c}\]c(K])")
_ONNX = re.compile(rb"\x08[\x01-\x1f][\x12\x1a\x22\x28\x32\x3a\x42]")
"""The version of ONNX's format, and the tag of a field that may follow it (onnx.proto, ModelProto)."""


def file_kind(head: bytes) -> str | None:
    """The type of a file with this beginning, worded as in "the file is …"; None if unknown.

    `data` is the first `HEAD` bytes, or the whole file if it is shorter.
    """
    head = head[:HEAD]
    if not head:
        return EMPTY
    for magic, offset, what in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return what
    if head.startswith(b"PK\x03\x04"):
        return _zip_kind(head)
    if _PICKLE.match(head):
        return "a Python pickle (a PyTorch checkpoint?)"
    if _ONNX.match(head):
        return ONNX
    return _text_kind(head)


def _zip_kind(head: bytes) -> str:
    length = struct.unpack_from("<H", head.ljust(30, b"\0"), 26)[0]
    first = head[30 : 30 + length]
    if first == b"weights.bin":
        return BUNDLE
    if first.endswith(b".npy"):
        return "a file of numpy arrays (.npz)"
    if first.endswith((b".pkl", b"/version", b".format_version", b"/byteorder")):
        return "a PyTorch checkpoint"
    if first.endswith(b".onnx"):
        return "a zip file with a model inside"
    return ZIP


def _text_kind(head: bytes) -> str | None:
    try:
        text = head[: HEAD - 4].decode("utf-8") if len(head) == HEAD else head.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if any(ord(c) < 32 and c not in "\t\n\r\f" for c in text):
        return None
    if re.match(r"\s*<(?:!doctype html|html)", text, re.IGNORECASE):
        return "an HTML page (a download that failed?)"
    return TEXT
