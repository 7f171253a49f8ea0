"""Signed bundles: what a reader that trusts keys accepts, and what it refuses before it parses the manifest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts import reader
from heterocc.artifacts.errors import (
    BundleError,
    BundleHashError,
    SignatureError,
    UntrustedBundleError,
    UsageError,
)
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.sign import sign_bundle
from heterocc.artifacts.signing.keys import PublicKey, SigningKey, create_key_pair
from heterocc.artifacts.signing.signatures import LINE, MAX_SIGNATURES, sign, to_member
from heterocc.artifacts.writer import BundleWriter
from heterocc.runtime import load
from tests.artifacts.bundle_forge import contents, edited, pack
from tests.artifacts.bundle_sample import write_sample
from tests.runtime import standin

SIGNATURE = "manifest.sig"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> list[SigningKey]:
    folder = tmp_path_factory.mktemp("keys")
    return [create_key_pair(folder / f"{name}.key")[0] for name in ("ours", "theirs")]


@pytest.fixture
def signed(tmp_path: Path, keys: list[SigningKey]) -> Path:
    """A bundle that the first key signed."""
    path = tmp_path / "m.hcb"
    write_sample(path)
    sign_bundle(path, keys[0])
    return path


def opens(path: Path, *trusted: PublicKey) -> str:
    with open_bundle(path, trusted_keys=trusted) as bundle:
        return bundle.digest


def test_a_bundle_signed_by_a_trusted_key_opens_and_keeps_its_digest(tmp_path: Path, keys: list[SigningKey]) -> None:
    path = tmp_path / "m.hcb"
    write_sample(path)
    with open_bundle(path) as bundle:
        digest = bundle.digest
        assert bundle.signatures() == ()
    before = contents(path)
    report = sign_bundle(path, keys[0])
    assert report.keys == (keys[0].public,) and opens(path, keys[0].public) == digest == report.digest
    after = contents(path)
    assert after.pop(SIGNATURE) and after == before
    with open_bundle(path) as bundle:
        bundle.verify()
        assert [s.key for s in bundle.signatures()] == [keys[0].public]


def test_signing_while_writing_and_afterwards_give_the_same_bytes(tmp_path: Path, keys: list[SigningKey]) -> None:
    plain = tmp_path / "plain.hcb"
    write_sample(plain)
    finish = BundleWriter.finish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BundleWriter, "finish", lambda *args, **kwargs: finish(*args, **kwargs, key=keys[0]))
        write_sample(tmp_path / "signed.hcb")
    sign_bundle(plain, keys[0], tmp_path / "later.hcb")
    assert (tmp_path / "later.hcb").read_bytes() == (tmp_path / "signed.hcb").read_bytes() != plain.read_bytes()
    sign_bundle(tmp_path / "later.hcb", keys[0])
    assert (tmp_path / "later.hcb").read_bytes() == (tmp_path / "signed.hcb").read_bytes()


def test_several_keys_sign_in_any_order_and_each_of_them_suffices(
    tmp_path: Path, signed: Path, keys: list[SigningKey]
) -> None:
    other = tmp_path / "other.hcb"
    write_sample(other)
    for key in reversed(keys):
        sign_bundle(other, key)
    sign_bundle(signed, keys[1])
    assert other.read_bytes() == signed.read_bytes()
    for key in keys:
        opens(signed, key.public)
    report = sign_bundle(signed, keys[1], replace=True)
    assert report.removed == (keys[0].public,)
    opens(signed, keys[1].public)
    with pytest.raises(UntrustedBundleError, match="not by a trusted key"):
        opens(signed, keys[0].public)


def test_the_file_is_replaced_by_renaming_so_that_open_sessions_keep_the_old_one(
    tmp_path: Path, keys: list[SigningKey]
) -> None:
    path = standin.write_bundle(tmp_path / "m.hcb", standin.chain(1))
    with load(path, verify="load") as session:
        sign_bundle(path, keys[0])
        np.testing.assert_array_equal(session.run({"x": np.ones(16, np.float32)})["v0"], np.full(16, 2, np.float32))
    with load(path, trusted_keys=[keys[0].public]) as session:
        session.run({"x": np.ones(16, np.float32)})


# ---- refused ------------------------------------------------------------------------------------------------------


def test_an_unsigned_bundle_one_of_another_key_and_an_empty_list_are_refused(
    tmp_path: Path, signed: Path, keys: list[SigningKey]
) -> None:
    write_sample(tmp_path / "unsigned.hcb")
    with pytest.raises(UntrustedBundleError, match="the bundle is not signed") as caught:
        opens(tmp_path / "unsigned.hcb", keys[0].public)
    assert caught.value.where == str(tmp_path / "unsigned.hcb") and "sign_bundle" in str(caught.value.hint)
    with pytest.raises(UntrustedBundleError) as caught:
        opens(signed, keys[1].public)
    assert keys[0].public.short in caught.value.message
    with pytest.raises(UsageError, match="list of trusted keys is empty"):
        opens(signed)


def test_every_changed_byte_of_a_signature_is_noticed(signed: Path, keys: list[SigningKey]) -> None:
    data = signed.read_bytes()
    start = data.index(contents(signed)[SIGNATURE])
    for place in range(LINE):
        for bit in (0x01, 0x20, 0x80):
            changed = bytearray(data)
            changed[start + place] ^= bit
            with pytest.raises((SignatureError, UntrustedBundleError)):
                open_bundle(bytes(changed), trusted_keys=keys[0].public)


@pytest.mark.parametrize(
    "member",
    [
        b"",
        b"\n",
        b"ed25519 " + b"0" * 64 + b" " + b"0" * 128,
        b"ed25519 " + b"0" * 64 + b" " + b"0" * 128 + b"\n\n",
        b"ED25519 " + b"0" * 64 + b" " + b"0" * 128 + b"\n",
        b"ed25519 " + b"A" * 64 + b" " + b"0" * 128 + b"\n",
        (b"ed25519 " + b"0" * 64 + b" " + b"0" * 128 + b"\n") * 2,
        b"x" * 10_000_000,
    ],
)
def test_a_malformed_member_is_an_error_for_those_who_look_at_it_only(
    member: bytes, tmp_path: Path, keys: list[SigningKey]
) -> None:
    path = tmp_path / "m.hcb"
    write_sample(path)
    pack(path, {**contents(path), SIGNATURE: member})
    with open_bundle(path) as bundle, pytest.raises(SignatureError):
        bundle.signatures()
    with pytest.raises(SignatureError):
        opens(path, keys[0].public)
    with pytest.raises(SignatureError):
        sign_bundle(path, keys[0])
    sign_bundle(path, keys[0], replace=True)
    opens(path, keys[0].public)


def test_a_signature_of_another_bundle_and_swapped_manifests_are_refused(
    tmp_path: Path, signed: Path, keys: list[SigningKey]
) -> None:
    other = tmp_path / "other.hcb"
    write_sample(other, name="other.onnx")
    ours, theirs = contents(signed), contents(other)
    pack(other, {**theirs, SIGNATURE: ours[SIGNATURE]})
    with pytest.raises(SignatureError, match="not of this bundle"):
        opens(other, keys[0].public)
    with pytest.raises(SignatureError, match="not of this bundle"):
        sign_bundle(other, keys[1])
    swapped = {name: theirs.get(name, data) if name.startswith("manifest.") else data for name, data in ours.items()}
    pack(signed, swapped)
    with pytest.raises(SignatureError, match="not of this bundle"):
        opens(signed, keys[0].public)


def test_a_changed_manifest_is_refused_before_it_is_parsed(
    signed: Path, keys: list[SigningKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    for edit in (lambda m: m["model"].update(name="another"), lambda m: m.clear()):
        members = edited(signed, edit)
        pack(signed.with_name("changed.hcb"), members)
        with monkeypatch.context() as patch:
            for name in ("read_version", "parse_manifest", "check_manifest"):
                patch.setattr(reader, name, lambda *_: pytest.fail("parsed"))
            with pytest.raises(SignatureError):
                opens(signed.with_name("changed.hcb"), keys[0].public)


def test_a_replaced_member_is_a_wrong_hash_under_a_right_signature(signed: Path, keys: list[SigningKey]) -> None:
    members = contents(signed)
    members["code/p0.so"] = members["code/p0.so"][::-1]
    pack(signed, members)
    with open_bundle(signed, trusted_keys=[keys[0].public]) as bundle, pytest.raises(BundleHashError):
        bundle.member("code/p0.so")
    with pytest.raises(BundleHashError):
        sign_bundle(signed, keys[0])


def test_two_members_of_signatures_are_refused(signed: Path, keys: list[SigningKey]) -> None:
    members = contents(signed)
    data = {**members, "manifest.sih": members[SIGNATURE]}
    pack(signed, data)
    signed.write_bytes(signed.read_bytes().replace(b"manifest.sih", b"manifest.sig"))
    with pytest.raises(BundleError, match="two members are named"):
        opens(signed, keys[0].public)


def test_signatures_that_are_not_the_last_member_are_not_rewritten(signed: Path, keys: list[SigningKey]) -> None:
    members = contents(signed)
    signature = members.pop(SIGNATURE)
    first, *others = members.items()
    pack(signed, dict([first, (SIGNATURE, signature), *others]))
    opens(signed, keys[0].public)
    with pytest.raises(BundleError, match="is not the last member"):
        sign_bundle(signed, keys[1])


def test_a_bundle_has_at_most_sixteen_signatures(signed: Path, keys: list[SigningKey], tmp_path: Path) -> None:
    with open_bundle(signed) as bundle:
        digest = bundle.digest
    many = [create_key_pair(tmp_path / f"{i}.key")[0] for i in range(MAX_SIGNATURES)]
    pack(signed, {**contents(signed), SIGNATURE: to_member(sign(key, digest) for key in many)})
    opens(signed, many[-1].public)
    with pytest.raises(UsageError, match="more than 16 signatures"):
        sign_bundle(signed, keys[0])
    sign_bundle(signed, many[3])


# ---- policy -------------------------------------------------------------------------------------------------------


def test_a_required_signature_takes_its_keys_from_the_environment_and_without_any_loads_nothing(
    signed: Path, keys: list[SigningKey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HETEROCC_TRUSTED_KEYS", raising=False)
    with pytest.raises(UsageError, match="no key is trusted") as caught:
        open_bundle(signed, require_signature=True)
    assert "HETEROCC_TRUSTED_KEYS" in str(caught.value.hint)
    for number, key in enumerate(keys):
        (tmp_path / f"{number}.pub").write_bytes(key.public.to_pem())
    monkeypatch.setenv("HETEROCC_TRUSTED_KEYS", str(tmp_path))
    open_bundle(signed, require_signature=True).close()
    monkeypatch.setenv("HETEROCC_TRUSTED_KEYS", str(tmp_path / "1.pub"))
    with pytest.raises(UntrustedBundleError):
        load(signed, require_signature=True)
    open_bundle(signed, trusted_keys=str(tmp_path / "0.pub"), require_signature=True).close()
    write_sample(signed)
    open_bundle(signed).close()  # the variable alone requires nothing


def test_without_the_package_cryptography_bundles_load_and_a_signature_is_an_error_that_names_the_extra(
    tmp_path: Path, keys: list[SigningKey]
) -> None:
    path = standin.write_bundle(tmp_path / "m.hcb", standin.chain(1))
    sign_bundle(path, keys[0])
    script = f"""
import sys
import heterocc.runtime
assert "cryptography" not in sys.modules and "heterocc.artifacts.signing.keys" not in sys.modules
sys.modules["cryptography"] = None
heterocc.runtime.load({str(path)!r}).close()
assert "heterocc.artifacts.signing.keys" not in sys.modules
try:
    heterocc.runtime.load({str(path)!r}, trusted_keys=[{str(keys[0].public)!r}])
except heterocc.runtime.errors.MissingPackageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "HC116" in done.stdout and "pip install cryptography" in done.stdout
