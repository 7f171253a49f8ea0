"""Names of a model inside of lines of text: what would break a line, or hide in it, is escaped."""

from __future__ import annotations

import json


def one_line(text: str) -> str:
    """A name as it stands where it is plain, else in quotes with JSON's escapes."""
    plain = text and text.isprintable() and text == text.strip() and not text.startswith('"')
    return text if plain else quoted(text)


def quoted(text: str) -> str:
    """JSON's text in quotes; only what prints is left as it is. `json.loads` gives the name back."""
    return escaped(json.dumps(text, ensure_ascii=False))


def escaped(text: str) -> str:
    r"""What does not print (controls, line separators, marks of direction, lone surrogates) as `\u202e`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
