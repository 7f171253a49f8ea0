"""Names of a model within lines of text, with line breaks and invisible characters escaped."""

from __future__ import annotations

import json


def one_line(text: str) -> str:
    """A plain name unchanged, any other in quotes with JSON's escapes."""
    plain = text and text.isprintable() and text == text.strip() and not text.startswith('"')
    return text if plain else quoted(text)


def quoted(text: str) -> str:
    """A JSON string with all characters escaped that do not print; `json.loads` returns the name."""
    return escaped(json.dumps(text, ensure_ascii=False))


def escaped(text: str) -> str:
    r"""The text with characters that do not print (controls, line separators, direction marks) escaped as `\u202e`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
