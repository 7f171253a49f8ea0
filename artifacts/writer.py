"""Writing of a bundle: weights as they are added, members and manifest at the end; FORMAT.md is the specification."""

from __future__ import annotations

import hashlib
import io
import math
import os
import sys
import zlib
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt

from heterocc.artifacts.container import (
    MAX_MANIFEST,
    MAX_MEMBERS,
    PAGE,
    Entry,
    directory,
    local_header,
    name_is_safe,
)
from heterocc.artifacts.dtypes import STORAGE
from heterocc.artifacts.dynamic import is_dynamic
from heterocc.artifacts.errors import BundleError, InternalError
from heterocc.artifacts.manifest import (
    ARRANGED,
    COMPRESSED,
    CONDITIONED,
    CONTAINED,
    DIGEST_NAME,
    DYNAMIC,
    MANIFEST_NAME,
    PLAIN,
    REPLACING,
    RESERVED_NAMES,
    ROOMY,
    SIGNATURE_NAME,
    STEPPED,
    WEIGHTS_NAME,
    WIDENED,
    Golden,
    Manifest,
    Member,
    ModelInfo,
    Producer,
    Replacing,
    Variant,
    Version,
    Weight,
)
from heterocc.artifacts.validate import MAX_MARKS, check_manifest, count_marks
from heterocc.artifacts.weights.weight_file import Draft, WeightFile

if TYPE_CHECKING:
    from heterocc.artifacts.signing.keys import SigningKey


class BundleWriter:
    """A bundle under construction; use as a context manager and call `finish` inside.

    Weights are written to the file when they are added, and not kept; members are referenced until `finish`. The
    complete file appears at `path` in `finish`; after an exception nothing remains. The bytes depend only on the
    arguments and the order of `add_weight` calls, not on the order of `add_member` calls, hashing, time or folder. Not
    thread-safe.

    Raises OutputFileError (HC111) from any method when the file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durable: bool = True,
        draft: Draft | None = None,
        into: Draft | None = None,
    ) -> None:
        """`durable` False leaves it to the system when the file reaches the disk: for a bundle that is soon removed.

        With `into` the complete file is not moved to `path`, but left to that draft. Weights of `draft` that the bundle
        has in the same order are not written again.
        """
        self._tensors = WeightFile(path, durable=durable, draft=draft, compare=into is None)
        self._file = self._tensors.file
        self._into = into
        self._members: dict[str, bytes | memoryview] = {}
        self._weights: list[Weight] = []
        self._index: dict[tuple[str, tuple[int, ...], str], int] = {}
        self._places: dict[str, tuple[int, int]] = {}
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._into is None or not self._finished:
            self._file.discard()
        if error is None and not self._finished:
            raise InternalError("a bundle was begun but not finished")

    def add_weight(self, array: npt.NDArray[np.generic], dtype: str | None = None, sha256: str | None = None) -> int:
        """Store a tensor once by content and return its index in `Manifest.weights`.

        Any shape is allowed, including `()` and empty ones. Only arrays that are not C-contiguous or not little endian
        are copied. `dtype` names the stored type if numpy lacks it: `bfloat16` for an array of uint16. `sha256` is the
        digest of the stored bytes, if it is known.
        Raises InternalError (HC902) for a dtype that the format lacks (strings, objects).
        """
        name = dtype or array.dtype.name
        storage = STORAGE.get(name)
        if storage is None or storage.itemsize != array.dtype.itemsize or array.dtype.hasobject:
            raise InternalError(f"a weight of dtype {array.dtype} cannot be stored as '{name}'")
        shape = tuple(int(d) for d in array.shape)
        data = _raw(array)
        digest = sha256 or hashlib.sha256(data).hexdigest()
        if digest not in self._places:
            self._places[digest] = (self._tensors.append(data, digest), data.nbytes)
        return self._index_of(name, shape, digest)

    def add_known_weight(self, dtype: str, shape: tuple[int, ...], nbytes: int, sha256: str) -> int | None:
        """Store a tensor without its elements, if it was added, or the bundle at `path` has it where it would be.

        Returns its index in `Manifest.weights`; None, and nothing is stored, if it is to be added with its elements.
        """
        if sha256 not in self._places:
            offset = self._tensors.append_known(nbytes, sha256)
            if offset is None:
                return None
            self._places[sha256] = (offset, nbytes)
        return self._index_of(dtype, shape, sha256)

    def _index_of(self, dtype: str, shape: tuple[int, ...], sha256: str) -> int:
        """The index of a tensor whose bytes are stored."""
        key = (dtype, shape, sha256)
        if key not in self._index:
            offset, nbytes = self._places[sha256]
            self._weights.append(Weight(dtype=dtype, shape=shape, offset=offset, nbytes=nbytes, sha256=sha256))
            self._index[key] = len(self._weights) - 1
        return self._index[key]

    def weight(self, index: int) -> Weight:
        """The record of an added weight."""
        return self._weights[index]

    def add_member(self, name: str, data: bytes | memoryview | str) -> str:
        """Add a member and return its name; text is stored as UTF-8. Adding the same member again is allowed.

        Raises InternalError (HC902) for a name that FORMAT.md does not allow, or that already has another content.
        """
        raw = data.encode("utf-8") if isinstance(data, str) else data
        if not name_is_safe(name) or name in RESERVED_NAMES or name == WEIGHTS_NAME:
            raise InternalError(f"a bundle's member cannot be named {name!r}")
        if self._members.setdefault(name, raw) != raw:
            raise InternalError(f"two different members are named '{name}'")
        if len(self._members) > MAX_MEMBERS - len(RESERVED_NAMES) - 1:
            raise BundleError(f"a bundle cannot have more than {MAX_MEMBERS} members")
        return name

    def add_array(self, name: str, array: npt.NDArray[np.generic]) -> str:
        """Add a `.npy` member (golden inputs and outputs) and return its name.

        Arrays of Python strings are stored with numpy's fixed-width dtype. Raises InternalError (HC902) for other
        objects.
        """
        if array.dtype.hasobject:
            if not all(isinstance(item, str) for item in array.flat):
                raise InternalError(f"an array of {array.dtype} cannot be stored in a bundle ('{name}')")
            array = array.astype(np.str_)
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.asarray(array), version=(1, 0), allow_pickle=False)
        return self.add_member(name, buffer.getvalue())

    def finish(
        self,
        *,
        producer: Producer,
        model: ModelInfo,
        variants: tuple[Variant, ...],
        golden: Golden | None = None,
        goldens: tuple[Golden, ...] = (),
        faults: tuple[str, ...] = (),
        replacing: Replacing | None = None,
        key: SigningKey | None = None,
    ) -> Manifest:
        """Write members and manifest, check every reference as a reader does, and move the file to its path.

        With `key` the bundle is signed. A file for a draft is not moved.

        Raises BundleManifestError (HC304), a bug in the caller, for an invalid reference or size.
        """
        if self._finished:
            raise InternalError("a bundle was finished twice")
        self._tensors.close()
        size = self._tensors.end - PAGE
        entries = [Entry(WEIGHTS_NAME, size, self._tensors.crc, 0, PAGE)]
        members = [Member(name=WEIGHTS_NAME, size=size, sha256=None)]
        for name in sorted(self._members):
            data = self._members[name]
            entry = self._append_member(name, data)
            entries.append(entry)
            members.append(Member(name=name, size=entry.size, sha256=hashlib.sha256(data).hexdigest()))
        manifest = Manifest(
            producer=producer,
            model=model,
            members=tuple(members),
            weights=tuple(self._weights),
            variants=variants,
            golden=golden,
            goldens=goldens,
            faults=faults,
            replacing=replacing,
        )
        manifest = manifest.model_copy(update={"version": _version(manifest)})
        check_manifest(manifest, {entry.name: entry.size for entry in entries})
        text = manifest.to_bytes()
        if len(text) > MAX_MANIFEST or count_marks(text) > MAX_MARKS:
            raise BundleError(
                f"the manifest has {len(text)} bytes and {count_marks(text)} values, "
                f"more than {MAX_MANIFEST} or {MAX_MARKS}",
                hint="compile fewer variants",
            )
        entries.append(self._append_member(MANIFEST_NAME, text))
        digest = hashlib.sha256(text).hexdigest()
        entries.append(self._append_member(DIGEST_NAME, f"{digest}\n".encode("ascii")))
        if key is not None:
            from heterocc.artifacts.signing.signatures import sign, to_member

            entries.append(self._append_member(SIGNATURE_NAME, to_member([sign(key, digest)])))
        self._file.write(directory(entries, self._file.position))
        if self._into is None:
            self._file.commit()
        else:
            self._into.keep(self._file, self._tensors.written)
        self._finished = True
        return manifest

    def _append_member(self, name: str, data: bytes | memoryview) -> Entry:
        view = memoryview(data).cast("B")
        start, crc = self._file.position, zlib.crc32(view)
        header = local_header(name, view.nbytes, crc)
        self._file.write(header)
        self._file.write(view)
        return Entry(name, view.nbytes, crc, start, start + len(header))


def _version(manifest: Manifest) -> Version:
    """The first version that has what the manifest uses."""
    found = _version_of_code(manifest)
    if manifest.model.held:
        return Version(major=found.major, minor=REPLACING[found.major])
    return found if manifest.model.compressed is None else Version(major=found.major, minor=COMPRESSED[found.major])


def _version_of_code(manifest: Manifest) -> Version:
    """The first version that has what the manifest uses beside the form of compressed weights."""
    layouts = [x for variant in manifest.variants for part in variant.partitions for x in part.layouts.values()]
    if any(variant.conditions for variant in manifest.all_variants):
        return Version(major=CONDITIONED[0], minor=CONDITIONED[1])
    if any(part.sequences for variant in manifest.variants for part in variant.partitions):
        return Version(major=CONTAINED[0], minor=CONTAINED[1])
    if any(layout.widens is not None for layout in layouts):
        return Version(major=WIDENED[0], minor=WIDENED[1])
    if any(bounds.step > 1 for variant in manifest.variants for bounds in variant.bounds.values()):
        return Version(major=STEPPED[0], minor=STEPPED[1])
    if any(variant.rooms for variant in manifest.variants):
        return Version(major=ROOMY[0], minor=ROOMY[1])
    later = 1 if manifest.model.classes or manifest.model.defaults else 0
    if is_dynamic(manifest):
        return Version(major=DYNAMIC[0], minor=DYNAMIC[1] + later)
    major, minor = ARRANGED if layouts else PLAIN
    return Version(major=major, minor=minor + later)


def _raw(array: npt.NDArray[np.generic]) -> memoryview:
    """The array's bytes in row-major order and little endian, without a copy if they already are."""
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    contiguous = np.ascontiguousarray(array)
    if math.prod(contiguous.shape) == 0:
        return memoryview(b"")
    # Viewed as uint8, because numpy exports no buffer for the dtypes of extension packages.
    return contiguous.reshape(-1).view(np.uint8).data
