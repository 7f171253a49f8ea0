"""Signing of a finished bundle: the member `manifest.sig` is added or replaced, and no other byte changes."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.container import MAX_MEMBERS, Entry, directory, local_header
from heterocc.artifacts.errors import BundleError, Hint, SignatureError, UsageError
from heterocc.artifacts.files.atomic import AtomicFile
from heterocc.artifacts.manifest import SIGNATURE_NAME
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.signing.keys import PublicKey, SigningKey, read_signing_key
from heterocc.artifacts.signing.signatures import MAX_SIGNATURES, Signature, sign, to_member


@dataclass(frozen=True, slots=True)
class SignReport:
    """A signed bundle: its path, its digest, which signing does not change, and the keys of all its signatures.

    `removed` are the keys of signatures that were replaced.
    """

    path: str
    digest: str
    keys: tuple[PublicKey, ...]
    removed: tuple[PublicKey, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The report in the form of `heterocc sign --json`."""
        return {
            "bundle": self.path,
            "digest": self.digest,
            "keys": [str(key) for key in self.keys],
            "removed": [str(key) for key in self.removed],
        }


def sign_bundle(
    path: str | os.PathLike[str],
    key: SigningKey | str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    replace: bool = False,
) -> SignReport:
    """Add a signature to a bundle, after a check of all its hashes; with `replace`, in place of all others.

    `key` is a private key or the file of an unencrypted one. The result is written to `output`, by default over the
    bundle, by renaming: sessions that have it open keep the old file. Signing again with the same key gives the same
    bytes.

    Raises the errors of `open_bundle` and `read_signing_key`, BundleHashError (HC303) for a damaged bundle,
    SignatureError (HC307) if a signature that is kept does not match, OutputFileError (HC111).
    """
    signer = key if isinstance(key, SigningKey) else read_signing_key(key)
    target = os.fspath(path if output is None else output)
    with open_bundle(os.fspath(path)) as bundle:
        bundle.verify()
        old = _signatures(bundle, lenient=replace)
        for signature in old:
            if not replace and signature.key != signer.public and not signature.matches(bundle.digest):
                raise SignatureError(
                    f"the signature by {signature.key.short} is not of this bundle",
                    where=bundle.path,
                    hint=Hint("replace=True replaces all signatures", "--replace replaces all signatures"),
                )
        kept = [] if replace else [signature for signature in old if signature.key != signer.public]
        if len(kept) >= MAX_SIGNATURES:
            raise UsageError(f"a bundle cannot have more than {MAX_SIGNATURES} signatures", where=bundle.path)
        # The order of keys, not of signing, so that the order of commands does not change the bytes.
        signatures = sorted([*kept, sign(signer, bundle.digest)], key=lambda s: s.key.raw)
        body, entries = bundle.unsigned()
        if len(entries) >= MAX_MEMBERS:
            raise BundleError("the bundle has no room for one more member", where=bundle.path)
        data = to_member(signatures)
        crc = zlib.crc32(data)
        header = local_header(SIGNATURE_NAME, len(data), crc)
        start = body.nbytes
        file = AtomicFile(target)
        try:
            file.write(body)
            file.write(header + data)
            entry = Entry(SIGNATURE_NAME, len(data), crc, start, start + len(header))
            file.write(directory([*entries, entry], entry.end))
            file.commit()
        finally:
            file.discard()
            body.release()
        keys = tuple(signature.key for signature in signatures)
        return SignReport(target, bundle.digest, keys, tuple(s.key for s in old if s.key not in keys))


def _signatures(bundle: Bundle, *, lenient: bool) -> tuple[Signature, ...]:
    """The signatures of a bundle; with `lenient`, none if they are malformed."""
    try:
        return bundle.signatures()
    except SignatureError:
        if lenient:
            return ()
        raise
