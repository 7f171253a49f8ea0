"""Weights of partitions that an earlier compile kept: made when they are written, if at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import InternalError
from heterocc.compiler import compile_model
from heterocc.compiler.build import kept
from tests.compiler.onnx_build import model, node, save, value


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two products whose weights are packed; their compile is kept."""
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    nodes = [node("MatMul", "x a", "h"), node("MatMul", "h b", "y")]
    weights = {name: rng.standard_normal((128, 128)).astype(np.float32) for name in ("a", "b")}
    path = save(tmp_path, model(nodes, [value("x", (64, 128))], [value("y", (64, 128))], weights))
    compile_model(path, tmp_path / "m.hcb", devices="CPU")
    return path


def test_weights_that_the_bundle_has_are_not_made(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = source.parent / "m.hcb"
    before = target.read_bytes()
    made: list[int] = []
    packed = kept._packed
    monkeypatch.setattr(kept, "_packed", lambda *given: made.append(1) or packed(*given))
    compile_model(source, target, devices="CPU")
    assert not made and target.read_bytes() == before
    compile_model(source, source.parent / "other.hcb", devices="CPU")
    assert len(made) == 2 and (source.parent / "other.hcb").read_bytes() == before


def test_a_weight_that_is_not_as_it_was_checked_ends_the_compile(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = kept._packed
    monkeypatch.setattr(kept, "_packed", lambda *given: packed(*given) + np.float32(1))
    target = source.parent / "other.hcb"
    with pytest.raises(InternalError, match="not as it was when its partition was kept"):
        compile_model(source, target, devices="CPU")
    assert not target.exists() and not list(source.parent.glob(".heterocc-*"))
