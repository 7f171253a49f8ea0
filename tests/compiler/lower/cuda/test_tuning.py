"""Tuning on CUDA, from the property to the report, on the emulated driver (see cuda_emulated)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.lower import cuda_emulated
from tests.compiler.product_model import WEIGHT, save_product

CODE = """
import json, sys
from pathlib import Path
folder = Path(sys.argv[1])
from tests.compiler.lower import cuda_emulated
import numpy as np
from heterocc.compiler import compile_model
from heterocc.compiler.lower.cuda import lowering
from heterocc.compiler.lower.gpu.tuning import tune
from heterocc.runtime import load
from heterocc.runtime.native import cuda_api
cuda_api.cudart_candidates = lambda: iter([str(folder / 'libcudart.so.13')])
lowering.find_compiler = lambda arch: cuda_emulated.HostCompiler(folder)
tune.MOST_CANDIDATES = 4
report = compile_model(
    folder / 'm.onnx', folder / 'm.hcb', devices='CUDA', properties=('CUDA.tune=on',), cpu_variant=False
)
with load(folder / 'm.hcb') as session:
    y = session.run({'x': np.ones((64, 96), np.float32)})['y']
print(json.dumps([report.to_json()['tuned'], list(report.warnings), y.tolist()]))
"""


@pytest.mark.slow
def test_kernels_for_cuda_are_timed_and_the_chosen_ones_are_right(tmp_path: Path) -> None:
    save_product(tmp_path)
    cuda_emulated.build_driver(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)],
        env={**os.environ, **cuda_emulated.environment(tmp_path), "HETEROCC_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ((part,), warnings, y) = json.loads(done.stdout.splitlines()[-1])
    assert warnings == []
    assert part["device"] == "CUDA"
    (kernel,) = part["kernels"]
    assert kernel["candidates"] > 1 and not kernel["remembered"]
    assert 0 < kernel["after"] <= kernel["before"]
    np.testing.assert_allclose(y, np.ones((64, 96), np.float32) @ WEIGHT, rtol=1e-4, atol=1e-4)
    assert list((tmp_path / "cache").glob("tuning-*/*/*.json"))
