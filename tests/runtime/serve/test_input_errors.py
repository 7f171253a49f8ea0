"""A request whose values a model cannot compute with is the client's error, and the next one is answered."""

from __future__ import annotations

from pathlib import Path

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


@pytest.mark.slow
def test_a_request_that_a_node_cannot_compute_with_is_refused_and_the_next_one_is_answered(tmp_path: Path) -> None:
    compile_model(onnx.parser.parse_model(PICK), tmp_path / "pick.hcb")
    x = np.arange(4)
    with ServiceProcess(tmp_path / "pick.hcb") as service:
        for library, address in ((http_client, service.http), (grpc_client, service.grpc)):
            with library.InferenceServerClient(address) as client:
                for wanted in (3, 9, 2):
                    tensors = [library.InferInput("x", [4], "INT64"), library.InferInput("i", [1], "INT64")]
                    for tensor, array in zip(tensors, (x, np.array([wanted])), strict=True):
                        tensor.set_data_from_numpy(array)
                    if wanted < 4:
                        assert client.infer("pick", tensors).as_numpy("y").tolist() == [wanted]
                        continue
                    with pytest.raises(InferenceServerException, match="HC117: Gather 'pick'") as caught:
                        client.infer("pick", tensors)
                    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
        assert not any(record["level"] == "error" for record in service.log)
