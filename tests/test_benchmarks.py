"""What programs import exists, also of benchmarks and scripts, which are too long to be run by tests."""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = [
    path for pattern in ("benchmarks/**/*.py", "scripts/**/*.py", "tests/**/*_run.py") for path in ROOT.glob(pattern)
]


@pytest.mark.parametrize("program", sorted(PROGRAMS), ids=lambda path: path.name)
def test_everything_a_program_imports_from_the_project_exists(program: Path) -> None:
    assert not [f"{module}.{name}" for module, name in sorted(_imports(program)) if not _exists(module, name)]


def _imports(program: Path) -> set[tuple[str, str]]:
    """Modules of the project and the names imported from them; a plain import has an empty name."""
    found = set()
    for node in ast.walk(ast.parse(program.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
    return {(module, name) for module, name in found if module.partition(".")[0] in ("benchmarks", "heterocc", "tests")}


def _exists(module: str, name: str) -> bool:
    if find_spec(module) is None:
        return False
    found = import_module(module)
    return not name or hasattr(found, name) or (hasattr(found, "__path__") and bool(find_spec(f"{module}.{name}")))
