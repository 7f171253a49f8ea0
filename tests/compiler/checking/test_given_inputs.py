"""Files of inputs for the check that do not fit the model are refused before their numbers are read."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from heterocc.artifacts.errors import FeedError
from heterocc.compiler import compile_model

MODEL = '<ir_version: 9, opset_import: ["" : 18]> agraph (float[DIM] x, float[2] z) => (float[?] y) { y = Neg(x) }'


@pytest.mark.parametrize(("dim", "dtype"), [("2", "<f4"), ("n", "<f8")])
def test_a_large_array_of_another_shape_or_dtype_is_refused_by_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dim: str, dtype: str
) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": (2**25,)})
        file.truncate(file.tell() + 2**25 * int(dtype[-1]))
    with zipfile.ZipFile(tmp_path / "in.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.write(tmp_path / "x.npy", "x.npy")

    def refuse(*_args: object, **_options: object) -> None:
        raise AssertionError("the numbers were read")

    monkeypatch.setattr(np.lib.format, "read_array", refuse)
    with pytest.raises(FeedError, match="input 'x'"):
        compile_model(
            onnx.parser.parse_model(MODEL.replace("DIM", dim)),
            tmp_path / "m.hcb",
            devices="CPU,ORT",
            inputs=tmp_path / "in.npz",
            measure=False,
        )
