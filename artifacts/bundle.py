"""An open bundle: members, weights, signatures, and their hashes."""

from __future__ import annotations

import functools
import hashlib
import mmap
from typing import TYPE_CHECKING

import numpy as np

from heterocc.artifacts.container import Entry
from heterocc.artifacts.dtypes import STORAGE
from heterocc.artifacts.errors import BundleError, BundleHashError
from heterocc.artifacts.files.closing import Closing
from heterocc.artifacts.files.locks import renewed_lock
from heterocc.artifacts.files.sealed import SealedFile, sealed_memfd
from heterocc.artifacts.files.watch import FileWatch, changed
from heterocc.artifacts.manifest import SIGNATURE_NAME, Manifest
from heterocc.artifacts.npy import parse_npy
from heterocc.artifacts.weights.verify import (
    Extent,
    FileKey,
    Verification,
    is_remembered,
    is_settled,
    remember,
    wrong_hash,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from heterocc.artifacts.signing.signatures import Signature


class Bundle(Closing):
    """An open bundle, created by `open_bundle`. Thread-safe.

    `path` is as given (`<memory>` for bytes), `manifest` is fully checked, and `digest` is the manifest's SHA-256 in
    hex, which identifies the whole content. The file is mapped once, private and writable: writes into a view stay in
    this process.

    A bundle must be replaced by renaming, as `BundleWriter` does. If its file is changed in place, `check_unchanged`
    and every method that reads from it raise BundleChangedError (HC305). A change of mapped weights between that check
    and their use may be undetected until the next check; if it shortens the file, the process ends by SIGBUS. A bundle
    opened with `copy=True` does not depend on its file.
    """

    def __init__(
        self,
        path: str,
        mapped: mmap.mmap,
        manifest: Manifest,
        entries: dict[str, Entry],
        key: FileKey,
        watch: FileWatch | None = None,
    ):
        self.path = path
        self.manifest = manifest
        self.digest = key[-1]
        self._view: memoryview | None = memoryview(mapped)
        self._entries = entries
        self._key = key
        self._settled = is_settled(key)
        self._watch = watch
        self._changed: BundleError | None = None
        self._hashes = {m.name: m.sha256 for m in manifest.members}
        self._lock = renewed_lock()
        self._look_lock = renewed_lock()
        self._verification: Verification | None = None

    def __repr__(self) -> str:
        return f"<{'closed ' if self._view is None else ''}Bundle '{self.path}' of '{self.manifest.model.name}'>"

    def close(self) -> None:
        """Release the mapping, which is unmapped when the last view of it is garbage-collected."""
        self._view = None
        self._watch = None

    def check_unchanged(self) -> None:
        """Raise BundleChangedError (HC305) if the file was changed in place, so that the weights cannot be used.

        Takes one system call unless the file's state changed. In that case the weights are hashed again; a file that
        was only touched, renamed, linked or replaced by renaming stays usable.
        """
        watch = self._watch
        if watch is not None and watch.differs():
            self._look_again(watch)

    def _look_again(self, watch: FileWatch) -> None:
        with self._look_lock:
            if self._changed is None:
                try:
                    info = watch.now()
                    if not watch.only_replaced(info):
                        watch.check_size()
                        Verification(self._extents(), 2, lambda: None).wait()
                    watch.accept(info)
                except BundleError as error:
                    self._changed = changed(error.message) if isinstance(error, BundleHashError) else error
            if self._changed is not None:
                found = self._changed
                raise self._placed(type(found)(found.message, hint=found.hint))

    @property
    def member_names(self) -> tuple[str, ...]:
        """Names that `member` accepts, in file order: all members but the weight file."""
        return tuple(m.name for m in self.manifest.members if m.sha256 is not None)

    def member(self, name: str) -> memoryview:
        """A read-only copy of a member's bytes, whose SHA-256 is checked.

        Raises BundleHashError (HC303) if the hash differs from the manifest, and BundleError for a missing member.
        """
        data = self._bytes(name)
        if hashlib.sha256(data).hexdigest() != self._hashes[name]:
            raise self._placed(wrong_hash(f"member '{name}'"))
        return data

    def signatures(self) -> tuple[Signature, ...]:
        """The signatures in the bundle, which are not verified; empty if it is not signed.

        Raises SignatureError (HC307) if they are malformed.
        """
        from heterocc.artifacts.signing.signatures import from_member

        entry = self._entries.get(SIGNATURE_NAME)
        try:
            return () if entry is None else from_member(bytes(self._content(entry)))
        except BundleError as error:
            raise self._placed(error) from error.__cause__

    def unsigned(self) -> tuple[memoryview, tuple[Entry, ...]]:
        """The file's bytes before its signatures and the directory, and the members in them.

        Raises BundleError if the signatures are not the last member, where writers put them.
        """
        entries = tuple(self._entries.values())
        kept = tuple(entry for entry in entries if entry.name != SIGNATURE_NAME)
        if kept != entries[: len(kept)]:
            raise self._placed(BundleError(f"'{SIGNATURE_NAME}' is not the last member", hint="do not repack a bundle"))
        return self._mapped()[: kept[-1].end].toreadonly(), kept

    def text(self, name: str) -> str:
        """A member as UTF-8 text."""
        try:
            return str(self.member(name), "utf-8")
        except UnicodeDecodeError:
            raise self._placed(BundleError(f"member '{name}' is not UTF-8 text")) from None

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """A `.npy` member as a read-only array without a copy; arrays of objects are refused."""
        try:
            return parse_npy(self.member(name), name)
        except BundleError as error:
            raise self._placed(error) from None

    def sealed_member(self, name: str) -> SealedFile:
        """A sealed memory file with the member's bytes, hashed after sealing; the caller closes it.

        Code loaded through its `path` is the code that was hashed, even if the bundle's file is changed.
        """
        data = self._bytes(name)
        try:
            sealed = SealedFile(sealed_memfd(name, data), data.nbytes)
        except BundleError as error:
            raise self._placed(error) from error.__cause__
        try:
            with sealed.map() as copy:
                if hashlib.sha256(copy).hexdigest() == self._hashes[name]:
                    return sealed
        except BundleError as error:
            sealed.close()
            raise self._placed(error) from error.__cause__
        sealed.close()
        raise self._placed(wrong_hash(f"member '{name}'"))

    def weights_view(self, index: int) -> npt.NDArray[np.generic]:
        """Weight `index` as an array on the mapped bytes: writable (DLPack requires it), 64-byte aligned, unverified.

        dtypes that numpy lacks (`bfloat16`, `float8_*`) are returned as unsigned integers of the same size.
        Call `verify_weights` or wait for `start_verification` before using values.
        """
        weight = self.manifest.weights[index]
        if not weight.nbytes:
            return np.empty(weight.shape, STORAGE[weight.dtype])
        self.check_unchanged()
        offset = self._weights_start + weight.offset
        return np.ndarray(weight.shape, STORAGE[weight.dtype], buffer=self._mapped(), offset=offset)

    def verify_weights(self, threads: int = 2) -> None:
        """Check the SHA-256 of every tensor. Raises BundleHashError (HC303) naming the first wrong one.

        Each tensor is hashed once per process while the file is the same and unchanged.
        """
        self.start_verification(threads).wait()

    def start_verification(self, threads: int = 2) -> Verification:
        """Start `verify_weights` in background threads; a second call returns the same handle.

        A forked child starts again if the parent had not finished.
        """
        with self._lock:
            if self._verification is None or self._verification.lost:
                watch = self._watch
                known = watch is not None and is_remembered(self._key) and not watch.differs()
                extents = [] if known else self._extents()
                self._verification = Verification(extents, threads, self._remember)
            return self._verification

    def verify(self, threads: int = 2) -> None:
        """Check every member and every tensor."""
        handle = self.start_verification(threads)
        for name in self.member_names:
            self.member(name)
        handle.wait()

    def _remember(self) -> None:
        if self._settled and self._watch is not None:
            remember(self._key)

    @property
    def _weights_start(self) -> int:
        return self._entries[self.manifest.weights_member].data

    def _bytes(self, name: str) -> memoryview:
        entry = self._entries.get(name)
        if entry is None or self._hashes.get(name) is None:
            raise self._placed(BundleError(f"the bundle has no member {name!r}"))
        return self._content(entry)

    def _content(self, entry: Entry) -> memoryview:
        watch, view = self._watch, self._mapped()
        if watch is None:
            return view[entry.data : entry.end].toreadonly()
        try:
            return memoryview(watch.read(entry.data, entry.size))
        except BundleError as error:
            raise self._placed(error) from error.__cause__

    def _mapped(self) -> memoryview:
        if self._view is None:
            raise self._placed(BundleError("the bundle was closed", hint="keep it open while it is used"))
        return self._view

    def _extents(self) -> list[Extent]:
        view, start, watch = self._mapped(), self._weights_start, self._watch
        seen: set[tuple[int, int, str]] = set()
        found: list[Extent] = []
        for index, weight in enumerate(self.manifest.weights):
            key = (weight.offset, weight.nbytes, weight.sha256)
            if key not in seen:
                seen.add(key)
                data = view[start + weight.offset : start + weight.offset + weight.nbytes]
                wrong = functools.partial(self._wrong_weight, index)
                found.append(Extent(data, weight.sha256, wrong, functools.partial(self._check_size, watch)))
        return found

    def _check_size(self, watch: FileWatch | None) -> None:
        if watch is not None:
            try:
                watch.check_size()
            except BundleError as error:
                raise self._placed(error) from None

    def _wrong_weight(self, index: int) -> BundleError:
        return self._placed(wrong_hash(weight_label(self.manifest, index)))

    def _placed(self, error: BundleError) -> BundleError:
        error.where = self.path
        return error


def weight_label(manifest: Manifest, index: int) -> str:
    """The label of a weight in a message: the name by which a partition or variant uses it, else its number."""
    for variant in manifest.all_variants:
        for part in variant.partitions:
            for param, name in zip(part.params, part.param_names, strict=False):
                if param == index:
                    return f"weight {name[:200]!r}"
        for key, weight in variant.constants.items():
            if weight == index:
                return f"weight {variant.values[int(key)].name[:200]!r}"
    return f"weight {index}"
