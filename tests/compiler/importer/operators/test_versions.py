"""Operators of old versions mean after the import what they mean in the file."""

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.importer.operators.versions import CASES, Case
from tests.compiler.onnx_build import assert_close, model, run_imported, run_original, save, value


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.name}" for number, case in enumerate(CASES)])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_an_old_version_of_an_operator_keeps_its_meaning(tmp_path: Path, case: Case) -> None:
    for number, made in enumerate(case.nodes):
        made.name = f"n{number}"
    inputs = [value(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in case.feeds.items()]
    outputs = [value(name, None, elem_type) for name, elem_type in case.outputs]
    proto = model(
        case.nodes, inputs, outputs, case.constants, opset=case.opset, ir_version=4 if case.opset < 13 else 10
    )
    path = save(tmp_path, proto)
    expected = run_original(path, case.feeds)
    with np.errstate(invalid="ignore"):
        assert_close(run_imported(import_model(path), case.feeds), expected)
