"""Text in one line: names from models, files and drivers may hold line breaks and control characters."""

from __future__ import annotations

import re

UNSAFE = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""A character class: control characters (C0 except tab and newline, DEL, C1), line separators, marks that change the
direction of writing, and halves of surrogate pairs."""

_BREAKS = rf"[\t\n{UNSAFE}]"
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def one_line(text: str) -> str:
    r"""The text with line breaks and control characters escaped: `\n`, `\x1b`, `\u202e`."""
    return re.sub(_BREAKS, lambda found: escape(found[0]), text)


def escape(character: str) -> str:
    """The escape sequence of a character."""
    number = ord(character)
    return _SHORT.get(character) or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")
