"""Bundles whose weights were compressed, compared with the model that they were compiled from."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from typer.testing import CliRunner

from heterocc.artifacts.errors import VerifyError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model, verify_bundle
from heterocc.compiler.checking import verify
from heterocc.compiler.cli.main import app
from heterocc.compiler.regression.bundle_diff import diff_bundles
from tests.compiler.checking.test_compressing import two_products

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`two_products` with the first weight in 4 bits; the model is beside it."""
    folder = tmp_path_factory.mktemp("compressed")
    model = two_products(folder / "m.onnx")
    compile_model(model, folder / "m.hcb", devices="CPU", weights="int4:block=64", weights_keep="*/down", measure=False)
    return folder / "m.hcb"


def test_a_bundle_says_how_its_weights_were_compressed(compressed: Path) -> None:
    with open_bundle(compressed) as bundle:
        found = bundle.manifest.model.compressed
        assert found is not None and (found.form, found.keep) == ("int4:block=64", ("layers/down",))
    shown = CliRunner().invoke(app, ["inspect", str(compressed)]).stdout
    assert "compressed to int4:block=64 except of layers/down" in shown


def test_a_compressed_bundle_is_verified_with_the_float_model(compressed: Path) -> None:
    report = verify_bundle(compressed, compressed.with_suffix(".onnx"))
    assert report.ok and report.checked and "int4:block=64" in report.reference
    (lost,) = report.weight_errors
    assert lost.name == "y" and 15 < lost.snr < 40 < report.differences[0].snr
    assert json.loads(json.dumps(report.to_json()))["weight_errors"][0]["name"] == "y"
    done = CliRunner().invoke(app, ["verify", str(compressed), str(compressed.with_suffix(".onnx"))])
    assert done.exit_code == 0 and "errors of the outputs by compressed weights: 'y'" in done.stdout


def test_a_compressed_bundle_is_verified_on_given_inputs_and_bisected(compressed: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((5, 128), np.float32))
    given = [f"x={tmp_path / 'x.npy'}"]
    report = verify_bundle(compressed, compressed.with_suffix(".onnx"), inputs=given, bisect=True)
    assert report.ok and report.culprit is None and report.weight_errors


def test_a_compressed_bundle_is_not_verified_with_another_model(compressed: Path, tmp_path: Path) -> None:
    other = onnx.load(compressed.with_suffix(".onnx"))
    bias = next(t for t in other.graph.initializer if t.name == "bias")
    bias.CopyFrom(numpy_helper.from_array(np.zeros(200, np.float32), "bias"))
    onnx.save(other, tmp_path / "other.onnx")
    with pytest.raises(VerifyError, match="another model"):
        verify_bundle(compressed, tmp_path / "other.onnx")


def test_a_form_of_a_later_release_is_an_error_that_says_so(compressed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterocc.compiler.importer.weight_form._BITS", {"int8": 8})
    with pytest.raises(VerifyError, match="'int4:block=64', which this release does not know"):
        verify.verify_bundle(compressed, compressed.with_suffix(".onnx"))


def test_the_difference_of_two_bundles_names_their_forms_of_weights() -> None:
    found = diff_bundles(*(GOLDEN / f"bundle-{version}.hcb" for version in ("7.0", "7.1")))
    assert "compressed weights: none → int4:block=32 except head" in str(found.to_json())
