"""Mutants of ONNX models: a result or an error of the user's input; no crash, no hang, no runaway memory, no traceback.

They run in processes of their own (model_mutations.py); starting the first takes seconds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("model_mutations.py")


def ends(first: int, count: int, kept: Path) -> tuple[int, int]:
    """The numbers of imported and of refused mutants; fails if one is neither."""
    command = [sys.executable, str(SCRIPT), str(first), str(count), str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    results, refused = (int(part.split()[0]) for part in done.stdout.strip().splitlines()[-1].split(",")[:2])
    assert results + refused == count
    return results, refused


def test_mutants_of_models_are_imported_or_refused(tmp_path: Path) -> None:
    results, refused = ends(0, 40, tmp_path)
    assert results > 3 and refused > 12


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 10_000, 500))
def test_ten_thousand_mutants_of_models_are_imported_or_refused(tmp_path: Path, first: int) -> None:
    results, refused = ends(first, 500, tmp_path)
    assert results > 50 and refused > 200
