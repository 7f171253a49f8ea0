"""The member `manifest.sig`: signatures of a bundle's digest, and the check against trusted keys (FORMAT.md)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from heterocc.artifacts.errors import Hint, SignatureError, UntrustedBundleError, UsageError
from heterocc.artifacts.signing.keys import AnyKey, PublicKey, SigningKey, read_public_keys

MAX_SIGNATURES = 16
LINE = 202
"""Bytes of one signature's line."""
MAX_SIZE = MAX_SIGNATURES * LINE

TRUSTED_KEYS = "HETEROCC_TRUSTED_KEYS"
"""The environment variable that names a file or a directory of trusted keys."""

_LINE = re.compile(r"ed25519 ([0-9a-f]{64}) ([0-9a-f]{128})\n")


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature of a bundle: the signer's public key, and 64 bytes that are not yet verified."""

    key: PublicKey
    value: bytes

    def line(self) -> str:
        """The signature's line in the member."""
        return f"ed25519 {self.key.raw.hex()} {self.value.hex()}\n"

    def matches(self, digest: str) -> bool:
        """Return whether this is the key's signature of the bundle with this digest.

        Raises MissingPackageError (HC116) without the package cryptography.
        """
        return self.key.verifies(_message(digest), self.value)


def _message(digest: str) -> bytes:
    # The first line keeps a key that also signs other things from signing a bundle by accident.
    return f"heterocc bundle signature 1\n{digest}\n".encode("ascii")


def sign(key: SigningKey, digest: str) -> Signature:
    """A key's signature of the bundle with this digest (SHA-256 of the manifest, in hex)."""
    return Signature(key.public, key.sign(_message(digest)))


def to_member(signatures: Iterable[Signature]) -> bytes:
    """The bytes of the member."""
    return "".join(signature.line() for signature in signatures).encode("ascii")


def from_member(data: bytes) -> tuple[Signature, ...]:
    """The signatures in the bytes of the member. Raises SignatureError (HC307) for any other form."""
    text = data.decode("latin-1")
    lines = [text[start : start + LINE] for start in range(0, len(text), LINE)]
    found = [_LINE.fullmatch(line) for line in lines]
    if not 1 <= len(lines) <= MAX_SIGNATURES or None in found:
        raise SignatureError("'manifest.sig' is malformed", hint="copy the file again, or sign the bundle again")
    signatures = tuple(Signature(PublicKey(bytes.fromhex(m[1])), bytes.fromhex(m[2])) for m in found if m)
    if len({signature.key for signature in signatures}) != len(signatures):
        raise SignatureError("'manifest.sig' has two signatures by one key", hint="sign the bundle again")
    return signatures


class Trust:
    """The keys that a reader trusts, at least one."""

    def __init__(self, keys: Iterable[PublicKey]) -> None:
        self.keys = frozenset(keys)

    def check(self, digest: str, member: bytes | None) -> None:
        """Return if a trusted key signed the bundle with this digest; `member` is its `manifest.sig`, None if absent.

        Every signature by a trusted key must match; those by other keys have no influence. Raises UntrustedBundleError
        (HC306) without a signature by a trusted key, and SignatureError (HC307) for a wrong or malformed one.
        """
        if member is None:
            raise UntrustedBundleError("the bundle is not signed", hint=_HINT)
        signatures = from_member(member)
        trusted = [signature for signature in signatures if signature.key in self.keys]
        if not trusted:
            by = ", ".join(signature.key.short for signature in signatures)
            raise UntrustedBundleError(f"the bundle is signed by {by}, but not by a trusted key", hint=_HINT)
        for signature in trusted:
            if not signature.matches(digest):
                raise SignatureError(
                    f"the signature by {signature.key.short} is not of this bundle",
                    hint="the manifest or the signature was changed; get the bundle again from its source",
                )


_HINT = Hint(
    "sign it with a trusted key (sign_bundle), or add the signer's key to trusted_keys",
    "sign it with a trusted key (heterocc sign), or name the signer's public key with --trusted-key",
)


def trust_in(keys: AnyKey | Sequence[AnyKey] | None, required: bool) -> Trust | None:
    """The trust that the arguments of `open_bundle` express; None if any bundle is accepted.

    With `required` and without `keys`, they are read from the place that `HETEROCC_TRUSTED_KEYS` names. Raises
    UsageError (HC120) for an empty sequence or if no key is known, and the errors of `read_public_keys`.
    """
    if keys is None:
        if not required:
            return None
        place = os.environ.get(TRUSTED_KEYS)
        if not place:
            raise UsageError(
                "a signature is required, but no key is trusted",
                where=Hint("require_signature=True", "--require-signature"),
                hint=Hint("trusted_keys=[…]", "--trusted-key FILE") + f", or set {TRUSTED_KEYS} to a file or directory",
            )
        keys = place
    listed = [keys] if isinstance(keys, (str, os.PathLike, PublicKey)) else list(keys)
    if not listed:
        raise UsageError(
            "the list of trusted keys is empty", where="trusted_keys", hint="name at least one key, or leave it out"
        )
    return Trust(found for key in listed for found in read_public_keys(key))
