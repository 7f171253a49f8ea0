"""Ed25519 keys and their files: PEM as OpenSSL writes it (PKCS #8 private keys, SubjectPublicKeyInfo public keys)."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterocc.artifacts.errors import (
    FileMissingError,
    Hint,
    KeyFileError,
    MissingPackageError,
    OutputFileError,
    UsageError,
)
from heterocc.artifacts.files.opening import open_file
from heterocc.artifacts.foreign import pass_foreign

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREFIX = "ed25519:"
"""How the text of a public key begins; 64 hexadecimal digits follow."""

PUBLIC_SUFFIX = ".pub"

_MOST = 2**20
"""Maximum size of a key file in bytes."""
_TEXT = re.compile(r"ed25519:([0-9a-fA-F]{64})")
_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----([A-Za-z0-9+/=\s]*)-----END \1-----")
_HEAD = bytes.fromhex("302a300506032b6570032100")
"""The DER of a SubjectPublicKeyInfo of Ed25519 before the 32 bytes of the key (RFC 8410)."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key of 32 bytes; `str` is its text, which is also its identifier: `ed25519:` and 64 hex digits."""

    raw: bytes

    def __str__(self) -> str:
        return PREFIX + self.raw.hex()

    @property
    def short(self) -> str:
        """The first 16 digits, for messages."""
        return f"{PREFIX}{self.raw.hex()[:16]}…"

    def verifies(self, message: bytes, signature: bytes) -> bool:
        """Return whether `signature` (64 bytes) is this key's signature of `message` (RFC 8032).

        Raises MissingPackageError (HC116) without the package cryptography.
        """
        with _cryptography():
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):  # ValueError: the bytes are not a point of the curve
            return False
        return True

    def to_pem(self) -> bytes:
        """The content of a public key file."""
        body = base64.b64encode(_HEAD + self.raw)
        return b"-----BEGIN PUBLIC KEY-----\n" + body + b"\n-----END PUBLIC KEY-----\n"


class SigningKey:
    """A private key, from `read_signing_key` or `create_key_pair`. Its printed form shows the public key only."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """The signature of `message`, 64 bytes; equal messages have equal signatures."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"<SigningKey of {self.public}>"


AnyKey = str | os.PathLike[str] | PublicKey
"""A public key, its text, a file of them, or a directory of files that end in `.pub`."""


def read_public_keys(key: AnyKey) -> tuple[PublicKey, ...]:
    """The public keys of a file, which may hold several, of a directory of `.pub` files, or of a key's text.

    Raises FileMissingError (HC101), and KeyFileError (HC114) for a file that holds anything but public Ed25519 keys.
    """
    if isinstance(key, PublicKey):
        return (key,)
    shown = os.fspath(key)
    text = _TEXT.fullmatch(shown)
    if text is not None:
        return (PublicKey(bytes.fromhex(text[1])),)
    if shown.startswith(PREFIX):
        raise KeyFileError("a public key has 64 hexadecimal digits after 'ed25519:'", where=shown)
    path = Path(shown)
    if not path.is_dir():
        return _public_keys(_content(path), shown)
    files = sorted(file for file in path.glob(f"*{PUBLIC_SUFFIX}"))
    if not files:
        raise KeyFileError(
            f"the directory has no public key (*{PUBLIC_SUFFIX})", where=shown, hint="put public key files there"
        )
    return tuple(found for file in files for found in _public_keys(_content(file), str(file)))


def _public_keys(data: bytes, shown: str) -> tuple[PublicKey, ...]:
    keys = []
    for label, body in _BLOCK.findall(data):
        if b"PRIVATE" in label:
            raise KeyFileError(
                "the file holds a private key, but public keys are trusted",
                where=shown,
                hint=f"name the file that ends in {PUBLIC_SUFFIX}, and keep the private key where bundles are signed",
            )
        try:
            der = base64.b64decode(b"".join(body.split()), validate=True)
        except binascii.Error:
            der = b""
        if label != b"PUBLIC KEY" or len(der) != len(_HEAD) + 32 or not der.startswith(_HEAD):
            raise KeyFileError(
                "the file holds something other than public Ed25519 keys",
                where=shown,
                hint="`heterocc keygen` makes one",
            )
        keys.append(PublicKey(der[len(_HEAD) :]))
    if not keys:
        raise KeyFileError("the file holds no public key in PEM", where=shown, hint="`heterocc keygen` makes one")
    return tuple(keys)


def read_signing_key(
    path: str | os.PathLike[str], passphrase: str | Callable[[], str | None] | None = None
) -> SigningKey:
    """The private key in a PEM file. `passphrase`, or what it returns, is used for an encrypted key only.

    Raises FileMissingError (HC101), MissingPackageError (HC116), and KeyFileError (HC114) for another file, and for a
    passphrase that is missing or wrong.
    """
    shown = os.fspath(path)
    data = _content(Path(shown))
    labels = [label for label, _ in _BLOCK.findall(data)]
    if b"PUBLIC KEY" in labels:
        raise KeyFileError(
            "the file holds a public key, which cannot sign", where=shown, hint="name the file of the private key"
        )
    encrypted = b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in data
    secret = passphrase() if encrypted and callable(passphrase) else passphrase
    if encrypted and not secret:
        raise KeyFileError(
            "the private key is encrypted, and its passphrase is not known",
            where=shown,
            hint=Hint(
                "read_signing_key(path, passphrase)", "set HETEROCC_KEY_PASSPHRASE, or run the command in a terminal"
            ),
        )
    with _cryptography():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    try:
        key: Any = load_pem_private_key(data, secret.encode() if encrypted and isinstance(secret, str) else None)
    except Exception as error:  # ValueError, TypeError or UnsupportedAlgorithm, depending on the damage
        pass_foreign(error)
        if encrypted:
            message, hint = "the passphrase is wrong, or the private key is damaged", "give the right passphrase"
        else:
            message, hint = "the file holds no private key in PEM", "`heterocc keygen` makes one"
        raise KeyFileError(message, where=shown, hint=hint) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError("the private key is not of Ed25519", where=shown, hint="`heterocc keygen` makes one")
    return SigningKey(key)


def readable_by_others(path: str | os.PathLike[str]) -> bool:
    """Return whether users other than the owner may read or change a file of a private key."""
    return bool(Path(path).stat().st_mode & 0o077)


def create_key_pair(path: str | os.PathLike[str], passphrase: str | None = None) -> tuple[SigningKey, Path]:
    """Create a key pair: the private key in a new file `path`, which only its owner may read (mode 0600), and the
    public key beside it with the suffix `.pub`. Return the key and the path of the public key.

    With `passphrase` the private key is encrypted. No file is overwritten. Raises OutputFileError (HC111) if one of the
    files exists or cannot be written, UsageError (HC120) for an empty passphrase, MissingPackageError (HC116).
    """
    with _cryptography():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import (
            BestAvailableEncryption,
            Encoding,
            KeySerializationEncryption,
            NoEncryption,
            PrivateFormat,
        )
    if passphrase is not None and not passphrase:
        raise UsageError("the passphrase is empty", hint="leave it out for a key that is not encrypted")
    private = Path(path)
    public = private.with_name(
        private.stem + PUBLIC_SUFFIX if private.suffix == ".key" else private.name + PUBLIC_SUFFIX
    )
    made = Ed25519PrivateKey.generate()
    cipher: KeySerializationEncryption = NoEncryption()
    if passphrase is not None:
        cipher = BestAvailableEncryption(passphrase.encode())
    for file in (private, public):
        if os.path.lexists(file):
            raise _exists(file)
    _write_new(private, made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, cipher), 0o600)
    key = SigningKey(made)
    try:
        _write_new(public, key.public.to_pem(), 0o644)
    except OutputFileError:
        private.unlink(missing_ok=True)
        raise
    return key, public


def _exists(file: Path) -> OutputFileError:
    return OutputFileError(
        "the file exists, and a key is never overwritten", where=str(file), hint="choose another name"
    )


def _write_new(file: Path, data: bytes, mode: int) -> None:
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise _exists(file) from None
    except (OSError, ValueError) as error:
        pass_foreign(error)
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OutputFileError(f"cannot write the key: {reason}", where=str(file), hint="choose another place") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        file.unlink(missing_ok=True)
        pass_foreign(error)
        raise OutputFileError(f"cannot write the key: {error.strerror}", where=str(file)) from None


def _content(path: Path) -> bytes:
    try:
        with open_file(path) as stream:
            data = stream.read(_MOST + 1)
    except (OSError, ValueError) as error:
        pass_foreign(error)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise FileMissingError(f"cannot read the key: {reason}", where=str(path), hint="check the path") from None
    if len(data) > _MOST:
        raise KeyFileError("the file is too large for a key", where=str(path), hint="`heterocc keygen` makes one")
    return data


@contextmanager
def _cryptography() -> Iterator[None]:
    """Explain the absence of the package cryptography, which is imported only when a key is used."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(
            f"signatures need the package cryptography, which cannot be imported: {error}",
            hint="pip install cryptography",
        ) from None
