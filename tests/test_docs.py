"""The documents, and the docstrings of rooms, name files and modules that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts import reflow

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    # A log names what there was at its time.
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "log"),
]
_FOLDERS = "artifacts|benchmarks|compiler|docs|examples|passes|runtime|scripts|tests"
_PATH = re.compile(rf"(?<![\w/.-])(?:{_FOLDERS})/[\w/.-]*[\w/]")
_MODULE = re.compile(r"\bheterocc\.(?:artifacts|compiler|passes|runtime)(?:\.\w+)*")
_WRITTEN_BY_RUNS = ("benchmarks/results",)
ROOMS = sorted(
    path.parent
    for package in ("artifacts", "benchmarks", "compiler", "passes", "runtime")
    for path in ROOT.glob(f"{package}/**/__init__.py")
)
_FILE = re.compile(r"`([\w/]+(?:\.(?:py|cc|h|md)|/))`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_in_a_document_exists(document: Path) -> None:
    named = {path for path in _PATH.findall(document.read_text()) if not path.startswith(_WRITTEN_BY_RUNS)}
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_module_in_a_document_exists(document: Path) -> None:
    assert not [name for name in sorted(set(_MODULE.findall(document.read_text()))) if not _exists(name)]


@pytest.mark.parametrize("room", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_in_the_docstring_of_a_room_exists(room: Path) -> None:
    """A name is relative to the room, to one of its folders, to its package or to the project."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    folders = [room, *(path for path in room.iterdir() if path.is_dir()), *room.parents]
    assert not [name for name in _FILE.findall(text) if not any((folder / name).exists() for folder in folders)]


def test_lines_of_text_have_at_most_120_characters() -> None:
    """Tables and code are as wide as they need. `python -m scripts.reflow` reflows the rest."""
    found = list(reflow.pages())
    assert len(found) > 100
    assert not [f"{page.name}:{number}" for page in found for number in _long_lines(page.read_text())]


def test_a_reflow_changes_no_word_and_only_paragraphs_with_long_lines() -> None:
    long, words = "word " * 40 + "end", ["word"] * 40 + ["end"]
    kept = f"# {long}\n\n| {long} |\n\n```\n{long}\n```\n\n    {long}\n\nshort\nlines\n"
    made = reflow.reflowed(f"{kept}\n- {long}\n  {long}\n- two\n")
    assert made.startswith(kept) and reflow.reflowed(made) == made
    item = made[len(kept) :].strip("\n").split("\n")
    assert (
        item[0].startswith("- word") and all(line.startswith("  word") for line in item[1:-1]) and item[-1] == "- two"
    )
    assert max(map(len, item)) <= 120 and " ".join(item[:-1]).split() == ["-", *words, *words]


def test_a_reflow_makes_no_item_of_a_word() -> None:
    assert reflow.reflowed(long := "x " * 59 + "x - y " + "z " * 10) == long


def test_the_architecture_is_one_page() -> None:
    assert len((ROOT / "docs" / "ARCHITECTURE.md").read_text().split()) <= 700


def test_the_glossary_is_short_and_in_order() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    words = [line.split("|")[1].strip() for line in lines if line.startswith("| ")][1:]
    assert words == sorted(words, key=str.lower) and len(set(words)) == len(words) <= 40


def _long_lines(text: str) -> Iterator[int]:
    """The numbers of long lines outside tables, fenced and indented code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if len(line) > 120 and not fenced and not line.lstrip().startswith("|") and not line.startswith("    "):
            yield number


def _exists(name: str) -> bool:
    """Whether a name is a module, or one inside a module."""
    module, _, attribute = name.rpartition(".")
    try:
        found = find_spec(name)
    except ModuleNotFoundError:  # its parent is a module and no package
        found = None
    return found is not None or (find_spec(module) is not None and attribute in _text(module))


def _text(module: str) -> str:
    spec = find_spec(module)
    return "" if spec is None or spec.origin is None else Path(spec.origin).read_text()


def test_decisions_have_one_form_of_heading_and_say_what_superseded_them() -> None:
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        number = int(path.name[:4])
        title, blank, *rest = path.read_text().splitlines()
        assert title.startswith(f"# {number}. ") and blank == "", path.name
        for older in re.findall(r"^Supersedes .*?\]\((\d{4})-", "\n".join(rest), re.MULTILINE):
            (superseded,) = (ROOT / "docs" / "decisions").glob(f"{older}-*.md")
            assert superseded.read_text().splitlines()[2].startswith("Superseded"), superseded.name
