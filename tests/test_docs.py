"""The documents name files and modules that exist."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FOLDERS = "artifacts|benchmarks|compiler|docs|examples|passes|runtime|scripts|tests"
_PATH = re.compile(rf"(?<![\w/.-])(?:{_FOLDERS})/[\w/.-]*[\w/]")
_MODULE = re.compile(r"\bheterocc\.(?:artifacts|compiler|passes|runtime)(?:\.\w+)*")
_WRITTEN_BY_RUNS = ("benchmarks/results",)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_in_a_document_exists(document: Path) -> None:
    named = {path for path in _PATH.findall(document.read_text()) if not path.startswith(_WRITTEN_BY_RUNS)}
    assert not [path for path in sorted(named) if not (ROOT / path).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_module_in_a_document_exists(document: Path) -> None:
    assert not [name for name in sorted(set(_MODULE.findall(document.read_text()))) if not _exists(name)]


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
