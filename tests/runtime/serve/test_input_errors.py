"""A request whose values a model cannot compute with is the client's error, and the next one is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from heterocc.compiler import compile_model
from tests.runtime.serve.process import ServiceProcess

PICK = """
<ir_version: 9, opset_import: ["" : 18]>
agraph (int64[4] x, int64[1] i) => (int64[1] y) { [pick] y = Gather(x, i) }
"""
SHARE = """
<ir_version: 9, opset_import: ["" : 18]>
agraph (int64[4] x, int64[1] i) => (int64[4] y) { [share] y = Div(x, i) }
"""


def _ask(library: Any, client: Any, model: str, number: int) -> list[int]:
    tensors = [library.InferInput("x", [4], "INT64"), library.InferInput("i", [1], "INT64")]
    for tensor, array in zip(tensors, (np.arange(4), np.array([number])), strict=True):
        tensor.set_data_from_numpy(array)
    found: list[int] = client.infer(model, tensors).as_numpy("y").tolist()
    return found


@pytest.mark.slow
def test_a_request_that_a_node_cannot_compute_with_is_refused_and_the_next_one_is_answered(tmp_path: Path) -> None:
    compile_model(onnx.parser.parse_model(PICK), tmp_path / "pick.hcb")
    compile_model(onnx.parser.parse_model(SHARE), tmp_path / "share.hcb")
    with ServiceProcess(tmp_path / "pick.hcb", tmp_path / "share.hcb") as service:
        for library, address in ((http_client, service.http), (grpc_client, service.grpc)):
            with library.InferenceServerClient(address) as client:
                for model, node, wrong in (("pick", "Gather 'pick'", 9), ("share", "Div 'share'", 0)):
                    assert _ask(library, client, model, 2) == ([2] if model == "pick" else [0, 0, 1, 1])
                    with pytest.raises(InferenceServerException, match=f"HC117: {node}") as caught:
                        _ask(library, client, model, wrong)
                    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
                    assert _ask(library, client, model, 3) == ([3] if model == "pick" else [0, 0, 0, 1])
        assert not any(record["level"] == "error" for record in service.log)
