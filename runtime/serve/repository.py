"""The bundles of a service on disk, by model name and version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from heterocc.artifacts.errors import FileMissingError, UsageError

SUFFIX = ".hcb"

Versions = Mapping[str, Path]


def version_order(version: str) -> list[tuple[int, int, str]]:
    """A sort key that orders numbers in versions by value: 2 before 10, 1.9 before 1.10."""
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"([0-9]+)", version)]


def latest(versions: Sequence[str] | Mapping[str, object]) -> str:
    """The version that requests without a version get."""
    return max(versions, key=version_order)


class Repository:
    """Bundles and folders given to the service. A folder is read again for every `scan`."""

    def __init__(self, sources: Sequence[Path | str]) -> None:
        self._sources = tuple(map(Path, sources))

    def scan(self) -> dict[str, Versions]:
        """Every model's bundles by version, sorted by name. A bundle without a version has version 1.

        Raises FileMissingError if a source does not exist, and UsageError if two bundles have one name and version.
        """
        found: dict[str, dict[str, Path]] = {}
        for source in self._sources:
            for name, version, path in _bundles(source):
                other = found.setdefault(name, {}).setdefault(version, path)
                if other != path:
                    raise UsageError(
                        f"'{path}' and '{other}' are both version {version} of the model '{name}'",
                        hint="rename one of them, or put them in a folder NAME/ as VERSION.hcb",
                    )
        return dict(sorted(found.items()))


def _bundles(source: Path) -> list[tuple[str, str, Path]]:
    if not source.is_dir():
        if not source.is_file():
            raise FileMissingError(
                f"'{source}' does not exist or is not a file", hint="MODELS are bundles (.hcb), or folders of bundles"
            )
        return [(source.name.removesuffix(SUFFIX), "1", source)]
    try:
        entries = sorted(source.iterdir())
        found = [(entry.stem, "1", entry) for entry in entries if _is_bundle(entry)]
        for folder in entries:
            if folder.is_dir() and not folder.name.startswith("."):
                found += [(folder.name, entry.stem, entry) for entry in sorted(folder.iterdir()) if _is_bundle(entry)]
    except OSError as error:
        raise FileMissingError(f"the folder cannot be read: {error.strerror}", where=str(source)) from error
    return found


def _is_bundle(path: Path) -> bool:
    return path.suffix == SUFFIX and not path.name.startswith(".") and path.is_file()
