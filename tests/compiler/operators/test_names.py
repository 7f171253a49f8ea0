"""One place for the facts of an operator: the number of files that name it does not grow."""

from __future__ import annotations

from pathlib import Path

from scripts.operator_names import files_naming, mean

MOST = 2.0
"""The mean number of the compiler's files that name an operator. Lower it when it falls."""


def test_an_operator_is_named_in_few_files() -> None:
    found = files_naming()
    assert mean(found) <= MOST, "state a new fact in the operator's record (compiler/operators/), and look it up"


def test_names_in_messages_and_documentation_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text('"""Slice"""\n\nraise ValueError("a Slice")\nnames = "Exp Log".split()\n')
    assert set(files_naming(tmp_path)) == {"Exp", "Log"}
