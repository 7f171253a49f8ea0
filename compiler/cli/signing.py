"""Commands on keys and signatures: `heterocc keygen`, `sign`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from heterocc.compiler.cli.console import err
from heterocc.compiler.cli.shared import add
from heterocc.runtime.cli.commands import Screen
from heterocc.runtime.cli.options import BUNDLE, JSON, Option
from heterocc.runtime.cli.output import print_json, print_line, print_plain
from heterocc.runtime.cli.process import at_end

if TYPE_CHECKING:
    from heterocc.artifacts.bundle import Bundle as OpenBundle
    from heterocc.artifacts.signing.keys import SigningKey

PASSPHRASE = "HETEROCC_KEY_PASSPHRASE"
"""The environment variable with the passphrase of a private key."""


KEYGEN = (
    Option("key", "The file of the private key to create; the public key is beside it: me.key, me.pub.", Path),
    Option("--passphrase", f"Encrypt the private key; asks for a passphrase, or takes ${PASSPHRASE}.", bool),
    JSON,
)
SIGN = (
    BUNDLE,
    Option("key", "The private key, as `heterocc keygen` wrote it.", Path),
    Option("--output -o", "The signed bundle; default: the bundle itself, by renaming.", Path),
    Option("--replace", "Remove all other signatures, such as that of a revoked key.", bool),
    JSON,
)


def keygen(options: Any, _screen: Screen) -> int:
    """Create a pair of Ed25519 keys: the private key signs bundles, the public key verifies them."""
    from heterocc.artifacts.signing.keys import create_key_pair

    made, public = create_key_pair(options.key, _new_passphrase() if options.passphrase else None)
    if options.json:
        paths = {"private": str(options.key), "public": str(public)}
        print_json({**paths, "key": str(made.public), "encrypted": options.passphrase})
        return 0
    print_line(f"wrote {options.key} (private: keep it secret) and {public}")
    print_plain(f"key {made.public}")
    return 0


def sign(options: Any, _screen: Screen) -> int:
    """Add a signature to a bundle, after a check of all hashes; its digest does not change."""
    from heterocc.artifacts.files.reading import reading
    from heterocc.artifacts.sign import sign_bundle

    files = {options.key: "the private key", **({} if options.output is None else {options.bundle: "the bundle"})}
    with reading(files):
        report = sign_bundle(options.bundle, private_key(options.key), options.output, replace=options.replace)
    if options.json:
        print_json(report.to_json())
        return 0
    print_line(f"signed {report.path} (digest {report.digest})")
    for signer in report.keys:
        print_plain(f"  by {signer}")
    for signer in report.removed:
        print_plain(f"  removed: {signer}")
    return 0


def private_key(path: Path) -> SigningKey:
    """The private key in a file; its passphrase is taken from the environment, or asked for in a terminal."""
    from heterocc.artifacts.signing.keys import read_signing_key, readable_by_others

    key = read_signing_key(path, lambda: os.environ.get(PASSPHRASE) or _ask(f"passphrase of {path}"))
    if readable_by_others(path):
        err.print("[yellow]warning:[/] other users may read the private key: chmod 600 it")
    return key


def signature_states(bundle: OpenBundle, trusted: Sequence[str] | None) -> list[dict[str, Any]]:
    """The signatures of a bundle as JSON: the signer's `key`, whether it `matches` the manifest and is `trusted`.

    `matches` is None without the package cryptography, `trusted` without trusted keys. Raises SignatureError (HC307)
    for malformed signatures, and the errors of `read_public_keys`.
    """
    from heterocc.artifacts.errors import MissingPackageError
    from heterocc.artifacts.signing.keys import read_public_keys

    known = None if trusted is None else {key for text in trusted for key in read_public_keys(text)}
    states = []
    for signature in bundle.signatures():
        matches: bool | None = None
        with contextlib.suppress(MissingPackageError):
            matches = signature.matches(bundle.digest)
        states.append(
            {
                "key": str(signature.key),
                "matches": matches,
                "trusted": None if known is None else signature.key in known,
            }
        )
    return states


def print_signatures(states: Sequence[dict[str, Any]]) -> None:
    """Print one line per signature."""
    if not states:
        print_plain("signed    no")
    for state in states:
        if state["matches"] is None:
            verdict = "not verified: the package cryptography is not installed (pip install cryptography)"
        elif not state["matches"]:
            verdict = "WRONG: it is not a signature of this manifest"
        else:
            trust = {None: "no trusted key was given", True: "a trusted key", False: "not a trusted key"}
            verdict = f"verified; {trust[state['trusted']]}"
        print_plain(f"signed    by {state['key']}: {verdict}")


def _new_passphrase() -> str | None:
    from heterocc.artifacts.errors import UsageError

    given = os.environ.get(PASSPHRASE) or _ask("passphrase of the new key")
    if not given:
        raise UsageError("no passphrase was given", hint=f"set {PASSPHRASE}, or run the command in a terminal")
    if not os.environ.get(PASSPHRASE) and _ask("the same passphrase again") != given:
        raise UsageError("the two passphrases differ", hint="run the command again")
    return given


def _ask(prompt: str) -> str | None:
    """Text typed into the terminal without echo; None if standard input is not a terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    import getpass

    with _echo_restored():
        try:
            return getpass.getpass(f"{prompt}: ")
        except EOFError:
            return None


@contextlib.contextmanager
def _echo_restored() -> Iterator[None]:
    """Restore the terminal's echo if a signal ends the process while a passphrase is typed."""
    import termios

    before = termios.tcgetattr(sys.stdin)
    with at_end(lambda: termios.tcsetattr(sys.stdin, termios.TCSANOW, before)):
        yield


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    add(app, keygen, KEYGEN, "heterocc keygen release.key", "heterocc keygen release.key --passphrase")
    add(
        app,
        sign,
        SIGN,
        "heterocc sign model.hcb release.key",
        "heterocc sign model.hcb new.key --replace",
    )
