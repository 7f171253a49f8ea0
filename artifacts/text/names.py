"""File and member names derived from names in a model: plain ASCII, reproducible, and unique."""

from __future__ import annotations

import hashlib
import re

LONGEST = 100
"""Maximum number of characters of the result of `file_name`."""

_DIGEST = 12
_PLAIN = re.compile(rf"(?!.*-[0-9a-f]{{{_DIGEST}}}\Z)[A-Za-z0-9_][A-Za-z0-9_.+=,@-]{{0,{LONGEST - 1}}}(?<!\.)")


def file_name(text: str) -> str:
    """`text` if every system accepts it as a file name, else its ASCII characters and twelve digits of its hash.

    Different texts get different names, up to a collision of 48 bits of SHA-256: a text that ends like such a name gets
    new digits. `café` becomes `caf-850f7dc43910`, `模型` becomes `_-c98e118e0a43`.
    """
    if _PLAIN.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    kept = re.sub(r"[^A-Za-z0-9_.+=,@-]+", "_", text)[: LONGEST - _DIGEST - 1].strip("._-=+,@")
    return f"{kept or '_'}-{digest}"
