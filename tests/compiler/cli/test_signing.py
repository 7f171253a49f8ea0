"""The commands on keys and signatures, and the options of the commands that verify them."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler.cli.main import app
from tests.compiler.small import conv_net
from tests.runtime import standin


def heterocc(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a bundle, and two pairs of keys."""
    standin.write_bundle(tmp_path / "m.hcb", standin.chain(1))
    for name in ("a", "b"):
        assert heterocc("keygen", tmp_path / f"{name}.key").exit_code == 0
    return tmp_path


def test_a_key_is_made_and_shown_and_never_overwritten(folder: Path) -> None:
    made = json.loads(heterocc("keygen", folder / "c.key", "--json").stdout)
    assert made["public"] == str(folder / "c.pub") and made["key"].startswith("ed25519:") and not made["encrypted"]
    again = heterocc("keygen", folder / "c.key")
    assert again.exit_code == 1 and "error[HC111]" in again.stderr and "never overwritten" in again.stderr


def test_a_bundle_is_signed_inspected_and_verified(folder: Path) -> None:
    bundle = folder / "m.hcb"
    assert "signed    no" in heterocc("inspect", bundle).stdout
    refused = heterocc("run", bundle, "--trusted-key", folder / "a.pub")
    assert refused.exit_code == 1 and "error[HC306]: the bundle is not signed" in refused.stderr
    done = heterocc("sign", bundle, folder / "a.key")
    assert done.exit_code == 0 and f"signed {bundle}" in done.stdout, done.output
    both = json.loads(heterocc("sign", bundle, folder / "b.key", "--json").stdout)
    assert len(both["keys"]) == 2 and both["removed"] == []
    shown = heterocc("inspect", bundle, "--trusted-key", folder / "a.pub").stdout
    assert shown.count(": verified; ") == 2 and "; a trusted key\n" in shown and "; not a trusted key\n" in shown
    report = json.loads(heterocc("inspect", bundle, "--json").stdout)
    assert [s["matches"] for s in report["signatures"]] == [True, True] and report["digest"] == both["digest"]
    assert {s["trusted"] for s in report["signatures"]} == {None}
    for command in (["run"], ["bench", "-n", "1"], ["check"]):
        done = heterocc(*command, bundle, "--trusted-key", folder / "b.pub", "--json")
        assert done.exit_code == 0, done.output
    left = json.loads(heterocc("sign", bundle, folder / "b.key", "--replace", "--json").stdout)
    assert len(left["keys"]) == len(left["removed"]) == 1
    for command in ("run", "bench", "check", "verify"):
        done = heterocc(command, bundle, "--trusted-key", folder / "a.pub", "--json")
        assert done.exit_code == 1 and json.loads(done.stdout)["error"]["code"] == "HC306"


def test_a_required_signature_without_any_trusted_key_is_a_usage_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heterocc("sign", folder / "m.hcb", folder / "a.key")
    monkeypatch.delenv("HETEROCC_TRUSTED_KEYS", raising=False)
    for command in ("run", "bench", "check", "verify"):
        refused = heterocc(command, folder / "m.hcb", "--require-signature")
        assert refused.exit_code == 2 and "no key is trusted" in refused.stderr and "--trusted-key" in refused.stderr
    monkeypatch.setenv("HETEROCC_TRUSTED_KEYS", str(folder / "a.pub"))
    assert heterocc("check", folder / "m.hcb", "--require-signature").exit_code == 0


def test_inspect_shows_a_signature_that_does_not_match(folder: Path) -> None:
    heterocc("sign", folder / "m.hcb", folder / "a.key")
    data = bytearray((folder / "m.hcb").read_bytes())
    with open_bundle(folder / "m.hcb") as bundle:
        place = data.index(bundle.signatures()[0].line().encode()) + 100
    data[place] = ord("0") if data[place] != ord("0") else ord("1")
    (folder / "m.hcb").write_bytes(data)
    assert "WRONG: it is not a signature of this manifest" in heterocc("inspect", folder / "m.hcb").stdout
    refused = heterocc("run", folder / "m.hcb", "--trusted-key", folder / "a.pub")
    assert refused.exit_code == 1 and "error[HC307]" in refused.stderr


def test_a_compile_signs_and_refuses_a_wrong_key_before_it_begins(folder: Path) -> None:
    model = conv_net(folder / "c.onnx")
    refused = heterocc("compile", model, "-o", folder / "c.hcb", "-q", "--sign", folder / "a.pub")
    assert refused.exit_code == 1 and "error[HC114]" in refused.stderr and not (folder / "c.hcb").exists()
    done = heterocc("compile", model, "-o", folder / "c.hcb", "-q", "--no-check", "--sign", folder / "a.key")
    assert done.exit_code == 0, done.output
    assert heterocc("check", folder / "c.hcb", "--trusted-key", folder / "a.pub").exit_code == 0


def test_a_signed_bundle_is_not_written_over_the_key(folder: Path) -> None:
    refused = heterocc("sign", folder / "m.hcb", folder / "a.key", "-o", folder / "a.key")
    assert refused.exit_code == 1 and "would overwrite it" in refused.stderr
    assert b"PRIVATE" in (folder / "a.key").read_bytes()


def test_a_key_that_others_may_read_is_a_warning(folder: Path) -> None:
    (folder / "a.key").chmod(0o644)
    done = heterocc("sign", folder / "m.hcb", folder / "a.key")
    assert done.exit_code == 0 and "other users may read the private key" in done.stderr


def test_a_passphrase_comes_from_the_environment_and_a_missing_one_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETEROCC_KEY_PASSPHRASE", "geheim")
    assert heterocc("keygen", folder / "e.key", "--passphrase").exit_code == 0
    assert heterocc("sign", folder / "m.hcb", folder / "e.key").exit_code == 0
    monkeypatch.delenv("HETEROCC_KEY_PASSPHRASE")
    refused = heterocc("sign", folder / "m.hcb", folder / "e.key")
    assert refused.exit_code == 1 and "HETEROCC_KEY_PASSPHRASE" in refused.stderr
    refused = heterocc("keygen", folder / "f.key", "--passphrase")
    assert refused.exit_code == 2 and "no passphrase was given" in refused.stderr


def test_a_passphrase_is_asked_for_without_echo_in_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.execv(
            sys.executable,
            [sys.executable, "-m", "heterocc.compiler.cli", "keygen", str(folder / "t.key"), "--passphrase"],
        )
    said = b""
    with os.fdopen(terminal, "r+b", buffering=0) as stream:
        for prompt in (b"passphrase of the new key: ", b"the same passphrase again: "):
            while not said.endswith(prompt):
                said += os.read(stream.fileno(), 1000)
            os.write(stream.fileno(), b"geheim\n")
        while True:
            try:
                more = os.read(stream.fileno(), 1000)
            except OSError:  # the child closed the terminal
                break
            if not more:
                break
            said += more
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, said
    assert b"geheim" not in said and b"key ed25519:" in said
    monkeypatch.setenv("HETEROCC_KEY_PASSPHRASE", "geheim")
    assert heterocc("sign", folder / "m.hcb", folder / "t.key").exit_code == 0
