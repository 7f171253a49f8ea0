"""Text from models, bundles and other files as a terminal may get it: without control characters."""

from __future__ import annotations

import codecs
import re
from typing import TextIO

# Control characters (C0 but tab and newline, DEL, C1), line separators, what turns the direction of writing, and halves
# of surrogate pairs.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_PLAIN = {"…": "...", "·": "-", "\u2013": "-", "—": "-", "→": "->", "\u00d7": "x", "•": "*", "≤": "<=", "²": "^2"}


def printable(text: str) -> str:
    r"""The text with each control character as `\x1b`, and nothing else changed: a terminal obeys none of it."""
    return _UNSAFE.sub(lambda found: _escape(found[0]), text)


def printable_json(text: str) -> str:
    r"""JSON with every control character as `\u001b`: the same document."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def encodes_all(stream: TextIO | None) -> bool:
    """Whether a stream's encoding has every character."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    """What stands for characters that an encoding lacks: a plain form of our own signs, the number of others."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    shown = (_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode("ascii") for c in lost)
    return "".join(shown), error.end


ENCODING_ERRORS = "heterocc.plain"
"""The error handler for streams: what the encoding lacks is written in plain signs or escaped."""

codecs.register_error(ENCODING_ERRORS, _replaced)
