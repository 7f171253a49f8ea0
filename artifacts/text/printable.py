"""Text from models, bundles and other files, made safe for a terminal: without control characters."""

from __future__ import annotations

import codecs
import re
from typing import TextIO

from heterocc.artifacts.text.one_line import UNSAFE, escape

_UNSAFE = re.compile(f"[{UNSAFE}]")

_PLAIN = {"…": "...", "·": "-", "\u2013": "-", "—": "-", "→": "->", "\u00d7": "x", "•": "*", "≤": "<=", "²": "^2"}


def printable(text: str) -> str:
    r"""The text with control characters escaped, such as `\x1b`, so that a terminal does not interpret them."""
    return _UNSAFE.sub(lambda found: escape(found[0]), text)


def printable_json(text: str) -> str:
    r"""JSON text with control characters escaped, such as `\u001b`; the document stays the same."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def encodes_all(stream: TextIO | None) -> bool:
    """Return whether a stream's encoding can represent every character."""
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("_", "-").startswith("utf")


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace characters that an encoding lacks: heterocc's own signs by ASCII, others by an escape sequence."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    shown = (_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode("ascii") for c in lost)
    return "".join(shown), error.end


ENCODING_ERRORS = "heterocc.plain"
"""The name of the error handler for streams, which replaces characters that the encoding lacks."""

codecs.register_error(ENCODING_ERRORS, _replaced)
