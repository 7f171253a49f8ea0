"""A model whose run takes too long for the check of a compile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import InputError
from heterocc.compiler import compile_model
from heterocc.compiler.checking import reference
from tests.compiler.endless import endless


@pytest.mark.parametrize("trips", [2**29, 10**9])
def test_a_loop_that_does_not_end_ends_the_check_and_not_the_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trips: int
) -> None:
    monkeypatch.setattr(reference, "SECONDS", 1)
    path = endless(tmp_path, trips=trips)
    report = compile_model(path, tmp_path / "m.hcb", devices="CPU,ORT")
    assert any("no partition is checked" in text and "after 1 s" in text for text in report.warnings)
    np.savez(tmp_path / "x.npz", x=np.ones(1, np.float32))
    with pytest.raises(InputError, match="has not run the model after 1 s"):
        compile_model(path, tmp_path / "m.hcb", devices="CPU,ORT", inputs=tmp_path / "x.npz")
