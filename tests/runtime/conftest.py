from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import standin
import stress


@pytest.fixture
def bundle_of(tmp_path: Path) -> Callable[..., Path]:
    """Writes a bundle of stand-in variants and gives its path."""

    def write(*models: standin.Model) -> Path:
        return standin.write_bundle(tmp_path / "m.hcb", *models)

    return write


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> stress.Bundles:
    """The stress tests' network, compiled for whatever devices a test asks for."""
    return stress.Bundles(tmp_path_factory.mktemp("stress"))


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> stress.Samples:
    """Inputs of the stress tests' network and ONNX Runtime's results."""
    return stress.Samples.draw(tmp_path_factory.mktemp("samples"))
