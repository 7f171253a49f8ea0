from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from heterocc.runtime import Session, load
from tests.runtime import standin


@pytest.fixture(scope="session")
def sleeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose run returns its input after 20 ms, in which no core is used."""
    return standin.write_bundle(tmp_path_factory.mktemp("sleeper") / "m.hcb", standin.sleeping(20))


@pytest.fixture
def two(sleeper: Path) -> Iterator[Session]:
    """A session of it that runs two requests at the same time."""
    with load(sleeper, threads=1, requests=2) as session:
        yield session


def feed(number: float) -> dict[str, np.ndarray]:
    return {"x": np.full(1, number, np.float32)}


BAD = {"x": np.zeros(2, np.float32)}
