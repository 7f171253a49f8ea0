"""Modules whose import is put off, used by several threads at once, are whole for each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fresh_process import fresh


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package that binds the name of its submodule `field` to a function, long after it imported the submodule."""
    folder = tmp_path / "late"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import time\nimport late.field\ntime.sleep(0.3)\nfrom late.field import field\nfrom late.other import value\n"
    )
    (folder / "field.py").write_text("def field(): return 'function'\n")
    (folder / "other.py").write_text("import time\ntime.sleep(0.3)\nfrom late import field\nvalue = field.__name__\n")
    return tmp_path


def _program(package: Path, rest: str) -> str:
    return f"""
import sys, threading, time
sys.path.insert(0, {str(package)!r})
from heterocc.runtime.deferred import defer, run
defer("late", sys.path, early=lambda: "given")
import late
before = late.early(), "time" in vars(late), hasattr(late, "__wrapped__")
{rest}
"""


def test_no_thread_sees_a_name_before_the_module_is_whole(package: Path) -> None:
    program = _program(
        package,
        """
seen = []
def use(wait): time.sleep(wait); seen.append((late.field(), run("late").value))
workers = [threading.Thread(target=use, args=(0.07 * i,)) for i in range(8)]
[w.start() for w in workers]; [w.join() for w in workers]
print(*before, *set(seen), len(seen))
""",
    )
    assert fresh(program).strip() == "given False False ('function', 'field') 8"


def test_a_submodule_imported_first_does_not_hide_a_name_of_its_package(package: Path) -> None:
    (package / "late" / "alone.py").write_text("value = 3\n")
    program = _program(
        package,
        """
import late.field, late.alone
print(*before, late.field(), late.alone.value, sys.modules["late"].alone.value)
""",
    )
    assert fresh(program).strip() == "given False False function 3 3"


def test_a_package_has_the_submodules_that_were_imported_before_it(package: Path) -> None:
    inner = package / "late" / "inner"
    inner.mkdir()
    (inner / "__init__.py").write_text("from late.inner.part import value\n")
    (inner / "part.py").write_text("value = 4\n")
    (package / "late" / "__init__.py").write_text("from late.inner import value\n")
    program = _program(
        package,
        """
from late.inner import part
print(*before, late.value, late.inner.part.value, sys.modules["late"].inner is sys.modules["late.inner"])
""",
    )
    assert fresh(program).strip() == "given False False 4 4 True"


def test_a_submodule_is_imported_after_its_package_by_any_thread(package: Path) -> None:
    program = _program(
        package,
        """
import importlib
seen = []
worker = threading.Thread(target=lambda: seen.append(importlib.import_module("late.other").value))
worker.start(); time.sleep(0.1)
print(*before, late.value); worker.join()
print(*seen, sys.modules["late.other"].value)
""",
    )
    assert fresh(program).split() == ["given", "False", "False", "field", "field", "field"]
