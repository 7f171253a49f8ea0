"""The affinity file: TOML tables from node names, globs, operator types and ranges to devices."""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heterocc.artifacts.errors import AffinityFileError, FileMissingError
from heterocc.artifacts.files.filetype import HEAD, file_kind
from heterocc.artifacts.files.opening import open_file
from heterocc.artifacts.files.reading import note_read
from heterocc.artifacts.files.source import reading_hint
from heterocc.artifacts.files.texts import parse_toml
from heterocc.artifacts.files.writing import atomic_write
from heterocc.artifacts.foreign import pass_foreign
from heterocc.passes.affinity import Affinity, AffinityMode, Rule, RuleKind
from heterocc.passes.plan import UNPLACED, Plan
from heterocc.passes.text import escaped, quoted

__all__ = ["Affinity", "AffinityFile", "affinity_from", "affinity_text", "load_affinity", "write_affinity_file"]

Text = Annotated[str, Field(min_length=1)]


class AffinityFile(BaseModel):
    """An affinity file; every table maps a pattern to the label of a listed device.

    `mode`: `corrected` (nodes without a rule are placed automatically), `manual` (every node must be covered) or
    `automatic` (the model's own metadata is ignored, and rules are not allowed). Keys of `nodes` are node names, of
    `globs` patterns over node names with `*`, `?` and `[...]`, of `ops` operator types, of `ranges` inclusive ranges
    `first..last` in graph order. A node name overrides a range, a range a glob, and a glob an operator type; within a
    table the later entry wins.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    mode: AffinityMode = "corrected"
    nodes: dict[Text, Text] = {}
    globs: dict[Text, Text] = {}
    ops: dict[Text, Text] = {}
    ranges: dict[Text, Text] = {}


_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_ASSIGNED = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'[^']*'|[\w-]+)\s*=""")
MAX_FILE_BYTES = 64 << 20

_KINDS: Mapping[str, RuleKind] = {"ops": "op", "globs": "glob", "ranges": "range", "nodes": "name"}


def load_affinity(path: Path) -> Affinity:
    """The rules of an affinity file.

    Raises FileMissingError (HC101), and AffinityFileError (HC107) with the line and key at fault.
    """
    note_read(path, "the affinity file")
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise AffinityFileError("the affinity file is larger than 64 MB", where=str(path), hint="use globs")
        with open_file(path) as stream:
            content = stream.read()
        text = content.decode()
    except OSError as error:
        pass_foreign(error)
        what = f"cannot read the affinity file: {error.strerror}"
        raise FileMissingError(what, where=str(path), hint=reading_hint(error)) from error
    except UnicodeDecodeError as error:
        kind = file_kind(content[:HEAD])
        what = f"is {kind}" if kind else "is not UTF-8 text"
        raise AffinityFileError(
            f"the affinity file {what}", where=str(path), hint="an affinity file is a TOML file"
        ) from error
    try:
        data = parse_toml(text)
    except ValueError as error:
        pass_foreign(error)
        raise AffinityFileError(
            f"the affinity file is not valid TOML: {error}",
            where=str(path),
            hint="quote names that hold other characters than letters, digits, '-' and '_'",
        ) from error
    lines = _key_lines(text)
    try:
        file = AffinityFile.model_validate(data)
    except ValidationError as error:
        raise _explained(error, lines, path) from error
    rules = [
        Rule(kind, pattern, device, _place(path, lines, (table, pattern)))
        for table, kind in _KINDS.items()
        for pattern, device in getattr(file, table).items()
    ]
    if file.mode == "automatic" and rules:
        raise AffinityFileError(
            "mode 'automatic' does not allow rules",
            where=rules[0].where,
            hint="use mode 'corrected', or remove the rules",
        )
    return Affinity(file.mode, tuple(rules))


def affinity_from(source: Path | Mapping[str, str] | Affinity | None) -> Affinity:
    """The affinity of an option: a file, a mapping such as a changed query result, an Affinity, or None.

    Keys of a mapping are node names, `op:Softmax`, ranges `first..last` or globs, tried in this order.
    """
    if source is None:
        return Affinity()
    if isinstance(source, Affinity):
        return source
    if isinstance(source, Path):
        return load_affinity(source)
    for pattern, device in source.items():
        if not (isinstance(pattern, str) and isinstance(device, str) and pattern and device):
            raise AffinityFileError(
                f"an affinity maps node names to device names, but has {pattern!r}: {device!r}", where="affinity"
            )
    return Affinity.from_mapping(source, where="affinity")


def affinity_text(plan: Plan) -> str:
    """The text of an affinity file that assigns every placed node its device in `plan`.

    Nodes are named as in the model if those names distinguish them, else as in the graph.
    """
    sharers = Counter(name for node in plan.graph.nodes for name in dict.fromkeys((node.name, *node.original)))
    entries: list[tuple[int, str]] = []
    for node in plan.graph.nodes:
        device = plan.device_of[node.name]
        if device != UNPLACED:
            name = node.label if sharers[node.label] == 1 else node.name
            entries.append((sharers[name], f"{_quote(name)} = {_quote(device)}  # {escaped(node.op_type)}"))
    # Names that several nodes share come first, so that names of a single node override them.
    entries.sort(key=lambda entry: entry[0] == 1)
    lines = [f"# Placement of {quoted(plan.graph.name)}; change devices and give the file to --affinity.", ""]
    lines += ['mode = "corrected"', "", "[nodes]", *(line for _, line in entries)]
    return "\n".join(lines) + "\n"


def write_affinity_file(plan: Plan, path: Path) -> None:
    """Write `affinity_text(plan)`. Raises OutputFileError (HC111)."""
    atomic_write(path, affinity_text(plan))


def _explained(error: ValidationError, lines: Mapping[tuple[str, ...], int], path: Path) -> AffinityFileError:
    first = error.errors()[0]
    keys = tuple(str(part) for part in first["loc"] if part != "[key]")
    what = {
        "extra_forbidden": "is unknown",
        "literal_error": f"must be {first.get('ctx', {}).get('expected', 'one of the modes')}",
        "string_type": "must be a string: the label of a device",
        "string_too_short": "must not be empty",
        "dict_type": "must be a table",
    }.get(first["type"], first["msg"])
    return AffinityFileError(
        f"key '{'.'.join(keys)}' {what}",
        where=_place(path, lines, keys),
        hint=f"keys: {', '.join(AffinityFile.model_fields)}; tables map names to device labels",
    )


def _place(path: Path, lines: Mapping[tuple[str, ...], int], keys: tuple[str, ...]) -> str:
    """`file:line` of a key or its table; the file alone if the key was not found."""
    line = lines.get(keys) or lines.get(keys[:1])
    return f"{path}:{line}" if line else str(path)


def _key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Line numbers of tables and their keys, found by common ways to write them; TOML's parser gives no positions."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = (header[1],)
            found.setdefault(table, number)
        elif assigned := _ASSIGNED.match(line):
            with contextlib.suppress(tomllib.TOMLDecodeError):
                (key,) = tomllib.loads(f"{assigned[1]} = 0")
                found.setdefault((*table, key), number)
    return found


def _quote(text: str) -> str:
    """A TOML basic string, which is a JSON string with DEL escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
