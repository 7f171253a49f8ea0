"""NonMaxSuppression of any number of boxes against ONNX Runtime: ties, classes, batches and limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.reference import reference_session
from tests.symbolic_models import dynamic_model

LIMITS = {"most": np.array(7), "overlap": np.array(0.4, np.float32), "least": np.array(0.3, np.float32)}


@pytest.mark.parametrize(
    ("given", "centred"), [(("most", "overlap", "least"), 0), (("most", "overlap"), 1), (("most",), 0)]
)
def test_the_best_boxes_are_in_the_order_of_scores_then_of_places(
    given: tuple[str, ...], centred: int, tmp_path: Path
) -> None:
    node = helper.make_node("NonMaxSuppression", ["b", "s", *given], ["y"], center_point_box=centred)
    inputs: dict[str, tuple[str, Sequence[int | str | None]]] = {
        "b": ("float32", ("batch", "n", 4)),
        "s": ("float32", ("batch", 3, "n")),
    }
    model = dynamic_model([node], inputs, ["y"], {name: LIMITS[name] for name in given})
    compile_model(model, tmp_path / "m.hcb", devices="CPU", check=False)
    reference, rng = reference_session(model), np.random.default_rng(0)
    with load(tmp_path / "m.hcb") as session:
        for batch, n in ((1, 1), (1, 2), (2, 3), (1, 16), (2, 17), (1, 100), (3, 301)):
            # Sixteenths are exact, and few scores make many of them equal.
            boxes = rng.integers(0, 33, (batch, n, 4)).astype(np.float32) / 16
            scores = rng.integers(0, 9, (batch, 3, n)).astype(np.float32) / 8
            feed = {"b": boxes, "s": scores}
            (expected,) = reference.run(None, feed)
            np.testing.assert_array_equal(session.run(feed)["y"], expected)
