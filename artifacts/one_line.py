"""Text in one line: names from models and files may hold line breaks and control characters."""

from __future__ import annotations

import re

_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def one_line(text: str) -> str:
    r"""The text with line breaks and control characters escaped: `\n`, `\x1b`."""
    return _BREAKS.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    number = ord(character)
    return _SHORT.get(character) or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")
