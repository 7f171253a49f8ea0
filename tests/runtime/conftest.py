from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import standin


@pytest.fixture
def bundle_of(tmp_path: Path) -> Callable[..., Path]:
    """Writes a bundle of stand-in variants and gives its path."""

    def write(*models: standin.Model) -> Path:
        return standin.write_bundle(tmp_path / "m.hcb", *models)

    return write
