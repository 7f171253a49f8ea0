"""Load, run and close a bundle on one device, and check its result: what valgrind watches.

python scripts/sanitize/load_run_close.py compile BUNDLE API     in a process that valgrind does not slow down
python scripts/sanitize/load_run_close.py run BUNDLE
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

X = np.linspace(-1, 1, 256, dtype=np.float32).reshape(1, 4, 8, 8)


def compile_bundle(path: Path, api: str) -> None:
    """Compile the tests' small convolutional network for an API and a CPU whose instructions valgrind knows."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from heterocc.compiler import compile_model
    from tests.compiler.small import conv_net

    model = conv_net(path.with_suffix(".onnx"))
    devices = f"{api.upper()},CPU"
    properties = ("CPU.mcpu=x86-64-v3",)
    compile_model(model, path, devices=devices, properties=properties, affinity={"gate": "CPU"}, cpu_variant=False)


def run(path: Path) -> None:
    """Two loads, three runs each. Raises AssertionError for a result that is not the golden one."""
    from heterocc.runtime import load

    seen = []
    for _ in range(2):
        with load(path) as session:
            seen += [session.run({"x": X})["y"] for _ in range(3)]
    assert all(np.array_equal(seen[0], y) for y in seen), "results differ from run to run"
    assert np.isfinite(seen[0]).all()


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        compile_bundle(Path(sys.argv[2]), sys.argv[3])
    else:
        run(Path(sys.argv[2]))
