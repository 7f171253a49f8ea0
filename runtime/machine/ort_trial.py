"""A trial of a bundle's ONNX partitions in ONNX Runtime, in a separate process with limits.

The creation of a session computes with the bundle's contents, and may need any amount of time and memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SECONDS = 60
MEMORY = 8 << 30
"""The limit on address space in bytes, in addition to the space for the bundle's file."""


def refusals(path: str | os.PathLike[str], digest: str) -> dict[str, str]:
    """The reason of each variant with a refused partition, by name, of the bundle with this digest.

    The bundle's hashes must be correct.
    """
    command = [sys.executable, "-m", "heterocc.runtime.machine.ort_trial", os.fspath(path), digest]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False)
        found: dict[str, str] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"": f"ONNX Runtime has not taken its partitions after {SECONDS} s"}
    except ValueError:
        return {"": "ONNX Runtime ends the process, or takes too much memory, where it is given its partitions"}
    return found


def _main(path: str, digest: str) -> None:
    import resource

    from heterocc.artifacts.errors import HeteroccError
    from heterocc.artifacts.reader import open_bundle
    from heterocc.runtime.execute.ort import OrtPartition

    most = MEMORY + 2 * Path(path).stat().st_size
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    found: dict[str, str] = {}
    with open_bundle(path, expect_digest=digest) as bundle:
        for variant in bundle.manifest.all_variants:
            for part in (p for p in variant.partitions if p.kind == "onnx"):
                weights = {
                    name: (bundle.weights_view(index), bundle.manifest.weights[index].dtype)
                    for name, index in zip(part.param_names, part.params, strict=True)
                }
                model = bytes(bundle.member(part.code))
                try:
                    OrtPartition(part, variant.values, model, weights, threads=1, spin=False)
                except HeteroccError as error:
                    found.setdefault(variant.name, error.message)
    print(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
