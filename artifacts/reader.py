"""Opening of a bundle: the file is mapped once, and everything in it is checked before it is returned."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.container import MAX_MANIFEST, PAGE, Container
from heterocc.artifacts.errors import BundleError, BundleHashError, Hint, UsageError
from heterocc.artifacts.files.filetype import BUNDLE, HEAD, ONNX, ZIP, file_kind
from heterocc.artifacts.files.pages import ask_for_large_pages
from heterocc.artifacts.files.sealed import hint_for
from heterocc.artifacts.files.source import Source, open_source
from heterocc.artifacts.files.watch import FileWatch, copy_of
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.manifest import DIGEST_NAME, MANIFEST_NAME, SIGNATURE_NAME
from heterocc.artifacts.validate import check_manifest, parse_manifest, read_version
from heterocc.artifacts.weights.verify import wrong_hash

if TYPE_CHECKING:
    from heterocc.artifacts.signing.keys import AnyKey
    from heterocc.artifacts.signing.signatures import Trust


def open_bundle(
    path: Source,
    *,
    copy: bool = False,
    expect_digest: str | None = None,
    trusted_keys: AnyKey | Sequence[AnyKey] | None = None,
    require_signature: bool = False,
) -> Bundle:
    """Open a bundle and check its structure, manifest and every reference; members are hashed when they are used.

    `path` may also be bytes or a binary file. With `expect_digest` (64 hexadecimal digits) the bundle must have this
    digest, which is compared before the manifest is parsed.

    With `trusted_keys` one of these keys must have signed the bundle, which is verified before the manifest is parsed;
    each is a file of public keys, a directory of `.pub` files, or a text `ed25519:…`. `require_signature` without
    `trusted_keys` reads them from the file or directory that the environment variable `HETEROCC_TRUSTED_KEYS` names.

    With `copy` the whole file is read into memory, and later changes of it have no effect. Otherwise it is mapped,
    which uses memory only for the parts that are used, and shares them with other processes.

    Raises FileMissingError (HC101) if the file cannot be opened, UsageError (HC120) for another type of `path`, a
    malformed `expect_digest` or no trusted key, KeyFileError (HC114), else a BundleError: BundleVersionError (HC302),
    BundleHashError (HC303, the manifest's hash or `expect_digest` differs), BundleManifestError (HC304),
    UntrustedBundleError (HC306), SignatureError (HC307), or HC301 for a file that is not a bundle.
    """
    expected = None if expect_digest is None else _digest(expect_digest)
    trust = _trust(trusted_keys, require_signature)
    fd, shown = open_source(path)
    try:
        return _open(fd, shown, copy, expected, trust)
    except BundleError as error:
        error.where = error.where or shown
        error.hint = error.hint or "copy the file again, or compile the model again"
        raise
    except (OSError, ValueError) as error:  # an I/O error, or a file cut short between two calls
        pass_foreign(error)
        hint = hint_for(error, "check the disk and the limit on memory")
        raise BundleError(f"the bundle cannot be read: {error}", where=shown, hint=hint) from error
    finally:
        os.close(fd)


def _digest(text: object) -> str:
    if not isinstance(text, str) or re.fullmatch(r"[0-9a-fA-F]{64}", text.strip()) is None:
        raise UsageError(
            "expect_digest must be a SHA-256 in 64 hexadecimal digits",
            hint="read it from Bundle.digest or from the bundle's member manifest.sha256",
        )
    return text.strip().lower()


def _trust(keys: AnyKey | Sequence[AnyKey] | None, required: bool) -> Trust | None:
    if keys is None and not required:
        return None
    # Imported on use, because most processes need no keys.
    from heterocc.artifacts.signing.signatures import trust_in

    return trust_in(keys, required)


def _open(fd: int, shown: str, copy: bool, expected: str | None, trust: Trust | None) -> Bundle:
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        kind = "a directory" if stat.S_ISDIR(info.st_mode) else "a special file"
        raise BundleError(f"this is {kind}, not a bundle", hint="name a .hcb file")
    try:
        container = Container(fd, info.st_size)
        text, digest = _read_manifest(container)
    except BundleError as error:
        found = file_kind(os.pread(fd, HEAD, 0))
        if found in (None, BUNDLE, ZIP):  # for another zip, the original error is more specific
            raise
        raise BundleError(
            f"the file is {found}, not a bundle",
            hint=_compile_first(shown) if found == ONNX else "name a .hcb file, as `heterocc compile` writes it",
        ) from error
    if expected not in (None, digest):
        raise BundleHashError(
            f"the bundle's digest is {digest}, not {expected}", hint="the file is another bundle than the expected one"
        )
    if trust is not None:
        trust.check(digest, _read_signatures(container))
    read_version(text)
    entries = dict(container.entries())
    manifest = parse_manifest(text)
    check_manifest(manifest, {name: entry.size for name, entry in entries.items()})
    if entries[manifest.weights_member].data % PAGE:
        raise BundleError(f"the weight file is not at a {PAGE}-byte boundary", hint="do not repack a bundle")
    watch: FileWatch | None = None
    if copy:
        mapped = copy_of(fd, info.st_size)
    else:
        mapped = mmap.mmap(fd, info.st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        ask_for_large_pages(mapped)
        watch = FileWatch(fd, info)
    key = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns, digest)
    return Bundle(shown, mapped, manifest, entries, key, watch)


def _compile_first(shown: str) -> Hint:
    import shlex  # not at the top: only this error needs it

    target = str(Path(shown).with_suffix(".hcb"))
    return Hint(
        f"compile it first: compile_model({shown!r}, {target!r}), and load {target!r}",
        f"compile it first: heterocc compile {shlex.quote(shown)} -o {shlex.quote(target)}",
    )


def _read_manifest(container: Container) -> tuple[bytes, str]:
    """The manifest's bytes and their SHA-256, after comparison with the member that stores the hash."""
    entry, digest = container.locate(MANIFEST_NAME), container.locate(DIGEST_NAME)
    if entry.size > MAX_MANIFEST or digest.size != 65:
        raise BundleError(f"'{MANIFEST_NAME}' or '{DIGEST_NAME}' has an invalid size")
    text = container.read(entry.data, entry.size)
    found = hashlib.sha256(text).hexdigest()
    if container.read(digest.data, digest.size) != f"{found}\n".encode("ascii"):
        raise wrong_hash(f"'{MANIFEST_NAME}'")
    return text, found


def _read_signatures(container: Container) -> bytes | None:
    """The bytes of the member `manifest.sig`, None if the bundle has none."""
    from heterocc.artifacts.signing.signatures import MAX_SIZE

    if not container.has(SIGNATURE_NAME):
        return None
    entry = container.locate(SIGNATURE_NAME)
    # One byte more than is allowed suffices to refuse it.
    return container.read(entry.data, min(entry.size, MAX_SIZE + 1))
