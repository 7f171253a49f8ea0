"""Import of real models, compared with ONNX Runtime on the original files."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from heterocc.compiler.importer.pipeline import import_model
from tests import models
from tests.compiler.onnx_build import assert_close, run_imported, run_original

QUICK = ("mnist_cntk.onnx", "logreg_iris.onnx", "onnx_asr_wespeaker_scan.onnx", "silero_vad_openvino_16k.onnx")
LIGHT_QUICK = ("squeezenet", "shufflenet")


def held_against_the_file(path: Path, shapes: dict[str, tuple[int, ...]] | None = None) -> None:
    feeds = models.feeds(path, shapes)
    imported = import_model(path, shapes=shapes)
    expected = run_original(path, feeds)
    assert any(not isinstance(e, np.ndarray) or np.ptp(e.astype(np.float64)) > 0 for e in expected)
    assert_close(run_imported(imported, feeds), expected)


def fetched(file: str) -> Path:
    try:
        return models.real(file)
    except models.ModelUnavailableError as error:
        pytest.skip(str(error))


def quickly(names: tuple[str, ...], every: tuple[str, ...]) -> list[object]:
    return [n if n in names else pytest.param(n, marks=pytest.mark.models) for n in every]


@pytest.mark.parametrize("name", quickly(LIGHT_QUICK, models.LIGHT))
def test_a_classic_network_imports_and_gives_the_same_numbers(name: str) -> None:
    held_against_the_file(models.light(name))


@pytest.mark.parametrize("file", quickly(QUICK, tuple(models.rows())))
def test_a_real_model_imports_and_gives_the_same_numbers(file: str) -> None:
    held_against_the_file(fetched(file), dict(models.rows()[file].shapes))


PRINT = """
import hashlib, sys
from heterocc.compiler.importer.pipeline import import_model
m = import_model(sys.argv[1])
h = hashlib.sha256(m.proto.SerializeToString())
g = m.graph
h.update(repr((g.nodes, dict(g.values), g.inputs, g.outputs, sorted(g.constants))).encode())
h.update(repr((dict(m.sources), dict(m.opsets), m.notes, m.sha256)).encode())
for name, array in m.weights.items():
    h.update(name.encode() + array.tobytes())
print(h.hexdigest())
"""


def test_import_gives_the_same_bytes_in_any_folder_and_under_any_hash_seed(tmp_path: Path) -> None:
    source = models.light("shufflenet").read_bytes()
    digests = []
    for seed in ("0", "1"):
        folder = tmp_path / f"folder-{seed}"
        folder.mkdir()
        (folder / "m.onnx").write_bytes(source)
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PRINT, str(folder / "m.onnx")]
        digests.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert digests[0] == digests[1] and len(digests[0]) == 65


# ---- the fetcher itself -------------------------------------------------------------------------------------------


def test_a_model_that_cannot_be_fetched_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETEROCC_MODEL_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_CONFIG_FILE"):
        monkeypatch.setenv(name, os.devnull if name == "PIP_CONFIG_FILE" else "")
    with pytest.raises(models.ModelUnavailableError, match="cannot fetch qonnx"):
        models.real("mnist_cntk.onnx")
    assert not any(tmp_path.iterdir())


def test_a_damaged_cache_entry_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETEROCC_MODEL_CACHE", str(tmp_path))
    row = models.rows()["logreg_iris.onnx"]
    (tmp_path / row.file).write_bytes(b"damaged")
    if models._installed(row) is None:
        pytest.skip("the package that carries the model is not installed in this version")
    assert hashlib.sha256(models.real(row.file).read_bytes()).hexdigest() == row.sha256


def test_the_classic_networks_have_the_same_weights_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = models.light("shufflenet").read_bytes()
    monkeypatch.setenv("HETEROCC_MODEL_CACHE", str(tmp_path))
    assert models.light("shufflenet").read_bytes() == first
