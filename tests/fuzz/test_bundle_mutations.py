"""Mutants of a bundle with every hash made anew: looking and running give a typed error or a result.

Mutants that are run have no native code, because loading it means running it (docs/security.md).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model

HERE = Path(__file__).parent
SEED = 20_000
QUICK = 60
SLOW = 10_000
PART = 500
"""Mutants of one process."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real bundle with a compiled variant, one that stays ONNX, weights, golden vectors and several partitions."""
    folder = tmp_path_factory.mktemp("mutations")
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32), "w")
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 64]) for n in "xy"]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("Erf", ["a"], ["b"], name="erf"),
        helper.make_node("Relu", ["b"], ["y"], name="relu"),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "g", info[:1], info[1:], [w]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, folder / "m.onnx")
    compile_model(folder / "m.onnx", folder / "m.hcb", devices="CPU,ORT", variants=["ORT"], affinity={"erf": "ORT"})
    return folder / "m.hcb"


def refused(bundle: Path, what: str, first: int, count: int, folder: Path) -> int:
    """The number of refused mutants; fails if the process crashed, hung or raised another error."""
    program = [sys.executable, str(HERE / "mutants_run.py"), str(bundle), what, str(first), str(count), str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=1200, check=False)
    at = (folder / "at").read_text(encoding="ascii") if (folder / "at").exists() else "none"
    assert done.returncode == 0, f"mutant {at} of '{what}': exit status {done.returncode}\n{done.stderr[-3000:]}"
    return int(done.stdout.split()[0])


@pytest.mark.parametrize("what", ["look", "look-members", "run"])
def test_some_mutants_give_a_typed_error_or_a_result(what: str, bundle: Path, tmp_path: Path) -> None:
    count = refused(bundle, what, 0, QUICK, tmp_path)
    assert 0 < count < QUICK


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SLOW // PART))
@pytest.mark.parametrize("what", ["look", "look-members", "run"])
def test_many_mutants_give_a_typed_error_or_a_result(what: str, part: int, bundle: Path, tmp_path: Path) -> None:
    refused(bundle, what, SEED + part * PART, PART, tmp_path)


def test_the_largest_manifest_is_refused_or_read_in_bounded_time_and_memory(bundle: Path, tmp_path: Path) -> None:
    program = (
        "import pathlib, resource, sys, time\n"
        "from tests.artifacts.bundle_forge import contents, pack, with_manifest\n"
        "from heterocc.artifacts.errors import HeteroccError\n"
        "from heterocc.artifacts.reader import open_bundle\n"
        "from tests.fresh_process import peak\n"
        "members = contents(sys.argv[1])\n"
        "head = members['manifest.json'].rstrip()[:-1]\n"
        "kinds = {'lists': (b'[]', 2**18), 'numbers': (b'1.5', 2**19), 'texts': (b'\"' + b'x' * 14 + b'\"', 2**19),\n"
        "         'many lists': (b'[]', 2**21), 'large': (b'\"' + b'x' * 2**20 + b'\"', 60)}\n"
        "for kind, (item, count) in kinds.items():\n"
        "    text = head + b',\"x\":[' + b','.join([item] * count) + b']}'\n"
        "    pack(pathlib.Path(sys.argv[2]), with_manifest(members, text))\n"
        "    del text\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "    before, start = peak(), time.process_time()\n"
        "    try: open_bundle(sys.argv[2]).close()\n"
        "    except HeteroccError as error: print(kind, error.code)\n"
        "    else: print(kind, 'read')\n"
        "    assert time.process_time() - start < 5, kind\n"
        "    assert peak() - before < 300_000, kind\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(bundle), str(tmp_path / "x.hcb")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["lists read", "numbers read", "texts read", "many lists HC304", "large HC301"]
