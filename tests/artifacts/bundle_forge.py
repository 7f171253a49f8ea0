"""Makes bundles that are wrong in one way and right in all others."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heterocc.artifacts.container import PAGE, Entry, directory, local_header


def contents(path: Path) -> dict[str, bytes]:
    """All members of a bundle, read by Python's zipfile."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def pack(path: Path, members: dict[str, bytes]) -> None:
    """A well-formed container of `members`, the first with its data at 4096."""
    with path.open("wb") as file:
        entries = []
        for name, data in members.items():
            start = file.tell()
            crc = zlib.crc32(data)
            header = local_header(name, len(data), crc, None if start else PAGE)
            file.write(header + data)
            entries.append(Entry(name, len(data), crc, start, start + len(header)))
        file.write(directory(entries, file.tell()))


def with_manifest(members: dict[str, bytes], text: bytes) -> dict[str, bytes]:
    """`members` with another manifest, its digest right."""
    digest = hashlib.sha256(text).hexdigest().encode() + b"\n"
    return {**members, "manifest.json": text, "manifest.sha256": digest}


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> dict[str, bytes]:
    """The members of the bundle at `path` with its manifest changed by `edit`, the digest right."""
    members = contents(path)
    manifest = json.loads(members["manifest.json"])
    edit(manifest)
    return with_manifest(members, json.dumps(manifest).encode())


def rehash(manifest: dict[str, Any], members: dict[str, bytes]) -> None:
    """Give every member its true size and hash in the manifest."""
    for record in manifest["members"]:
        record["size"] = len(members[record["name"]])
        if record["sha256"] is not None:
            record["sha256"] = hashlib.sha256(members[record["name"]]).hexdigest()
