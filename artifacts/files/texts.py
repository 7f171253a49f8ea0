"""Parsing of TOML and JSON from files in bounded time and memory, with ValueError for every fault."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

MAX_DEPTH = 100
"""Maximum nesting of arrays and inline tables in TOML. Python's parser is recursive."""

_MAX_DOTS = 1 << 20
"""Maximum sum of squares of the numbers of dots in a line. tomllib needs quadratic time and memory for dotted keys."""

_TOML_STRINGS = re.compile(
    r"\"{3}(?:[^\\\"]|\\.|\"(?!\"\"))*\"{3}|'{3}.*?'{3}|\"(?:[^\\\"\n]|\\.)*\"|'[^'\n]*'|#[^\n]*", re.DOTALL
)
_BRACKETS = re.compile(r"[\[\]{}]")


def parse_toml(text: str) -> dict[str, Any]:
    """The table in TOML text. Raises ValueError for anything else, too deep a nesting and too long a dotted key."""
    plain = _TOML_STRINGS.sub("", text)
    _require_shallow(plain)
    if sum(line.count(".") ** 2 for line in plain.splitlines()) > _MAX_DOTS:
        raise ValueError("its keys have too many dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} times") from None


def parse_json(text: str, **options: Any) -> Any:
    """The value in JSON text; `options` are those of `json.loads`. Raises ValueError for anything else."""
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _require_shallow(text: str) -> None:
    depth = 0
    for bracket in _BRACKETS.findall(text):
        depth = depth + 1 if bracket in "[{" else max(depth - 1, 0)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} times")
