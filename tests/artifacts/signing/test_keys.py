"""Files of keys: created once and for the owner only, read strictly, and as OpenSSL writes them."""

from __future__ import annotations

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from heterocc.artifacts.errors import FileMissingError, KeyFileError, OutputFileError, UsageError
from heterocc.artifacts.signing.keys import PublicKey, create_key_pair, read_public_keys, read_signing_key

OPENSSL = shutil.which("openssl")


def test_a_private_key_is_for_its_owner_only_and_the_public_key_is_beside_it(tmp_path: Path) -> None:
    key, public = create_key_pair(tmp_path / "me.key")
    assert public == tmp_path / "me.pub" and (tmp_path / "me.key").stat().st_mode == stat.S_IFREG | 0o600
    assert read_public_keys(public) == (key.public,)
    assert read_signing_key(tmp_path / "me.key").public == key.public
    assert create_key_pair(tmp_path / "other")[1] == tmp_path / "other.pub"
    assert "PRIVATE" not in repr(key) and str(key.public) in repr(key)


@pytest.mark.parametrize("there", ["me.key", "me.pub"])
def test_a_key_is_never_overwritten(there: str, tmp_path: Path) -> None:
    (tmp_path / there).symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputFileError, match="never overwritten") as caught:
        create_key_pair(tmp_path / "me.key")
    assert str(tmp_path / there) == caught.value.where and [p.name for p in tmp_path.iterdir()] == [there]


def test_a_folder_that_is_missing_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OutputFileError, match="No such file") as caught:
        create_key_pair(tmp_path / "missing" / "me.key")
    assert caught.value.where == str(tmp_path / "missing" / "me.key")


def test_an_encrypted_key_needs_its_passphrase_and_a_plain_one_does_not_ask(tmp_path: Path) -> None:
    key, _ = create_key_pair(tmp_path / "me.key", "geheim")
    assert b"ENCRYPTED" in (tmp_path / "me.key").read_bytes()
    assert read_signing_key(tmp_path / "me.key", "geheim").public == key.public
    assert read_signing_key(tmp_path / "me.key", lambda: "geheim").public == key.public
    with pytest.raises(KeyFileError, match="passphrase is not known"):
        read_signing_key(tmp_path / "me.key")
    with pytest.raises(KeyFileError, match="passphrase is wrong"):
        read_signing_key(tmp_path / "me.key", "falsch")
    create_key_pair(tmp_path / "plain.key")
    read_signing_key(tmp_path / "plain.key", lambda: pytest.fail("asked"))
    with pytest.raises(UsageError, match="passphrase is empty"):
        create_key_pair(tmp_path / "empty.key", "")


def test_a_file_may_hold_several_public_keys_and_a_directory_several_files(tmp_path: Path) -> None:
    keys = [create_key_pair(tmp_path / f"{name}.key") for name in "abc"]
    all_of_them = tuple(key.public for key, _ in keys)
    both = tmp_path / "both.pem"
    both.write_bytes(b"a comment\n" + keys[0][1].read_bytes() + b"\n" + keys[1][1].read_bytes())
    assert read_public_keys(both) == all_of_them[:2]
    assert read_public_keys(tmp_path) == all_of_them
    assert read_public_keys(str(all_of_them[2])) == all_of_them[2:]
    assert read_public_keys(PublicKey(b"7" * 32)) == (PublicKey(b"7" * 32),)


def test_files_that_hold_something_else_are_refused_with_a_reason(tmp_path: Path) -> None:
    _, public = create_key_pair(tmp_path / "me.key")
    wrong = {
        "empty": b"",
        "text": b"not a key",
        "cut": public.read_bytes()[:60],
        "other": b"-----BEGIN PUBLIC KEY-----\n" + b"A" * 60 + b"\n-----END PUBLIC KEY-----\n",
        "unpadded": public.read_bytes().replace(b"=", b"AA"),
        "certificate": public.read_bytes().replace(b"PUBLIC KEY", b"CERTIFICATE"),
        "large": b"x" * (2**20 + 1),
    }
    for name, data in wrong.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(KeyFileError) as caught:
            read_public_keys(tmp_path / name)
        assert caught.value.where == str(tmp_path / name)
        with pytest.raises(KeyFileError):
            read_signing_key(tmp_path / name)
    with pytest.raises(KeyFileError, match="private key, but public keys are trusted"):
        read_public_keys(tmp_path / "me.key")
    with pytest.raises(KeyFileError, match="public key, which cannot sign"):
        read_signing_key(public)
    with pytest.raises(KeyFileError, match="64 hexadecimal digits"):
        read_public_keys("ed25519:12")
    (tmp_path / "none").mkdir()
    with pytest.raises(KeyFileError, match="no public key"):
        read_public_keys(tmp_path / "none")
    for missing in (tmp_path / "missing", "with\0nul"):
        with pytest.raises(FileMissingError):
            read_public_keys(missing)
    with pytest.raises(FileMissingError):
        read_signing_key(tmp_path)


@pytest.mark.skipif(OPENSSL is None, reason="no openssl on the PATH to compare with")
def test_keys_of_openssl_can_be_used(tmp_path: Path) -> None:
    private, public = tmp_path / "o.key", tmp_path / "o.pub"
    for arguments in (
        ["genpkey", "-algorithm", "ed25519", "-out", private],
        ["pkey", "-in", private, "-pubout", "-out", public],
    ):
        subprocess.run([str(OPENSSL), *map(str, arguments)], check=True, capture_output=True)
    assert read_public_keys(public) == (read_signing_key(private).public,)
    other = tmp_path / "rsa.key"
    subprocess.run([str(OPENSSL), "genpkey", "-algorithm", "RSA", "-out", str(other)], check=True, capture_output=True)
    with pytest.raises(KeyFileError, match=r"not of Ed25519"):
        read_signing_key(other)
