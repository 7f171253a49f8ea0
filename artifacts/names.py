"""File and member names made from names that a model gives: plain ASCII, the same each time, no two alike."""

from __future__ import annotations

import hashlib
import re

LONGEST = 100
"""Characters of what `file_name` gives."""

_DIGEST = 12
_PLAIN = re.compile(rf"(?!.*-[0-9a-f]{{{_DIGEST}}}\Z)[A-Za-z0-9_][A-Za-z0-9_.+=,@-]{{0,{LONGEST - 1}}}(?<!\.)")


def file_name(text: str) -> str:
    """`text` itself where any system takes it for a file name, else what is ASCII of it and twelve digits of its hash.

    Different texts get different names (up to a collision of 48 bits of SHA-256): a text that looks as if it had such
    digits gets new ones. `café` becomes `caf-850f7dc43910`, `模型` becomes `_-c98e118e0a43`.
    """
    if _PLAIN.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    kept = re.sub(r"[^A-Za-z0-9_.+=,@-]+", "_", text)[: LONGEST - _DIGEST - 1].strip("._-=+,@")
    return f"{kept or '_'}-{digest}"
