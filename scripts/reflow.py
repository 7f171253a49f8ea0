"""Reflow paragraphs of Markdown with lines of more than 120 characters: `python -m scripts.reflow [PAGE …]`.

Without pages, those of docs/ and the project's own. Paragraphs and items of lists without such a line stay as they are,
as do tables, headings, code, and paragraphs with forced line breaks.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 120
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_APART = ("|", "#", ">", "<", "```", "~~~")
"""How lines begin that are not part of a paragraph."""


def pages() -> Iterator[Path]:
    """The pages whose lines of text a test limits."""
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "artifacts/FORMAT.md"))


def reflowed(text: str) -> str:
    """The text with long paragraphs reflowed; the words and their order stay."""
    found: list[str] = []
    lines = text.split("\n")
    fenced = False
    while lines:
        line = lines.pop(0)
        fence = line.lstrip().startswith(("```", "~~~"))
        fenced ^= fence
        code = line.startswith("    ") and not _ITEM.match(line)
        if fence or fenced or code or not line.strip() or line.lstrip().startswith(_APART):
            found.append(line)
            continue
        block = [line]
        while lines and lines[0].strip() and not _ITEM.match(lines[0]) and not lines[0].lstrip().startswith(_APART):
            block.append(lines.pop(0))
        found += _wrapped(block)
    return "\n".join(found)


def _wrapped(block: Sequence[str]) -> Sequence[str]:
    if all(len(line) <= WIDTH for line in block) or any(line.endswith(("  ", "\\")) for line in block):
        return block
    item = _ITEM.match(block[0]) or re.match(r"\s*", block[0])
    assert item is not None
    words = " ".join(" ".join(block)[item.end() :].split())
    made = textwrap.wrap(
        words,
        WIDTH,
        initial_indent=item[0],
        subsequent_indent=" " * item.end(),
        break_long_words=False,
        break_on_hyphens=False,
    )
    # A line that begins as an item would become one.
    return block if any(_ITEM.match(line) or line.lstrip().startswith(_APART) for line in made[1:]) else made


def main(names: Sequence[str]) -> None:
    """Rewrite the pages that change, and print their names."""
    for page in map(Path, names) if names else pages():
        text = page.read_text(encoding="utf-8")
        made = reflowed(text)
        if made != text:
            page.write_text(made, encoding="utf-8")
            print(page)


if __name__ == "__main__":
    main(sys.argv[1:])
