"""The models of benchmarks/networks/dynamic.py: those of `models.toml`, or a file of the user's."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import models

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Model:
    """A model with sets of sizes of its dynamic dimensions.

    `source` is the package, its version and the file inside, or the user's path. `values` are those of inputs that no
    node states: a number, or the name of the dimension that the input holds.
    """

    name: str
    source: str
    sizes: tuple[Sizes, ...]
    values: Mapping[str, int | str] = field(default_factory=dict)
    file: Path | None = None

    def path(self) -> Path:
        """The file, downloaded on first use. Raises ModelUnavailableError."""
        return self.file or models.fetched(self.name + ".onnx", models.rows_of(_table()))


def _table() -> dict[str, dict[str, object]]:
    with (Path(__file__).parent / "models.toml").open("rb") as file:
        return {f"{name}.onnx": entry for name, entry in tomllib.load(file).items()}


def catalogue() -> list[Model]:
    """The models of `models.toml`."""
    found = []
    for name, entry in _table().items():
        names, sizes, values = entry["dimensions"], entry["sizes"], entry.get("values", {})
        assert isinstance(names, list) and isinstance(sizes, list) and isinstance(values, dict)
        source = f"{entry['package']}=={entry['version']} {entry['member']}"
        given = tuple(dict(zip(names, row, strict=True)) for row in sizes)
        found.append(Model(name.removesuffix(".onnx"), source, given, values))
    return found


def of_user(file: Path, sizes: Sequence[str]) -> Model:
    """A user's model; each of `sizes` gives every dynamic dimension a size: `batch=1,sequence=128`."""
    parsed = [dict(part.split("=") for part in text.split(",")) for text in sizes]
    return Model(file.stem, str(file), tuple({k: int(v) for k, v in row.items()} for row in parsed), {}, file)
