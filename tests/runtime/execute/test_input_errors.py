"""What the values of inputs lead to is an error of the input (HC117), however a session is run, and it can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from heterocc.artifacts.errors import InputValueError
from heterocc.compiler import compile_model
from heterocc.runtime import load

TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
agraph (float[{rows},2] x, int64[1] i) => (float[1,2] y) {{ [pick] y = Gather(x, i) }}
"""
X = np.arange(8, dtype=np.float32).reshape(4, 2)
RIGHT = {"x": X, "i": np.array([3])}
WRONG = {"x": X, "i": np.array([9])}


@pytest.fixture(params=["CPU fixed", "CPU dynamic", "ORT fixed", "ORT dynamic"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    devices, sizes = request.param.split()
    model = onnx.parser.parse_model(TEXT.format(rows="4" if sizes == "fixed" else "n"))
    compile_model(model, tmp_path / "m.hcb", devices=devices)
    with load(tmp_path / "m.hcb") as opened:
        yield opened


def _run_binding(session: Any, feed: dict[str, Any]) -> None:
    binding = session.bind()
    for name, array in feed.items():
        binding.inputs[name][...] = array
    binding.run()


@pytest.mark.parametrize(
    "run",
    [
        lambda session, feed: session.run(feed),
        lambda session, feed: session.run(["y"], feed),
        lambda session, feed: session.run(feed, out={"y": np.empty((1, 2), np.float32)}),
        lambda session, feed: session.run_async(feed).result(),
    ],
    ids=["run", "list", "out", "async"],
)
def test_an_index_out_of_range_is_an_error_of_the_input_that_names_the_node(session: Any, run: Any) -> None:
    for _ in range(2):  # the second run is native code's
        with pytest.raises(InputValueError, match="Gather 'pick'"):
            run(session, WRONG)
        run(session, RIGHT)
    np.testing.assert_array_equal(session.run(RIGHT)["y"], X[3:4])


@pytest.mark.parametrize("session", ["CPU fixed", "ORT fixed"], indirect=True)
def test_a_binding_with_an_index_out_of_range_raises_an_error_of_the_input(session: Any) -> None:
    with pytest.raises(InputValueError, match="Gather 'pick'"):
        _run_binding(session, WRONG)
    _run_binding(session, RIGHT)
