"""Sizes that are divided again and again are known by expressions up to a limit of their depth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import heterocc.runtime
from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.symbols import derivation, symbols
from heterocc.compiler.importer.symbols.symbols import DEEPEST
from tests.compiler.onnx_build import model, node, noise, value


def _doubled_and_cut(times: int) -> onnx.ModelProto:
    """A signal whose length is doubled and cut to a third `times` times, each a quotient inside of the next."""
    nodes = []
    for n in range(times):
        nodes.append(node("Concat", f"x{n} x{n}", f"y{n}", axis=0))
        nodes.append(node("Slice", f"y{n} zero end zero three", f"x{n + 1}"))
    weights = {"zero": np.array([0]), "end": np.array([2**62]), "three": np.array([3])}
    return model(nodes, [value("x0", ["n"])], [value(f"x{times}")], weights)


def test_sizes_of_many_quotients_inside_each_other_are_known_only_at_the_run() -> None:
    imported = import_model(_doubled_and_cut(150), keep_dims=True)  # took time with a power of their number
    assert imported.symbols is not None
    assert imported.symbols.fresh
    assert max(size.depth for size in imported.symbols.sizes.values()) == DEEPEST


@pytest.mark.slow
def test_a_signal_that_is_cut_more_often_than_expressions_are_deep_has_the_right_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (symbols, derivation):
        monkeypatch.setattr(module, "DEEPEST", 1)
    compile_model(_doubled_and_cut(3), tmp_path / "m.hcb", devices="CPU")
    with heterocc.runtime.load(tmp_path / "m.hcb") as session:
        for length in (1, 5, 99):
            x = noise(length)
            (found,) = session.run({"x0": x}).values()
            wanted = x
            for _ in range(3):
                wanted = np.concatenate([wanted, wanted])[::3]
            np.testing.assert_array_equal(found, wanted)
