"""Sequences and optional values in a manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterocc.artifacts.dtypes import Container, container
from heterocc.artifacts.errors import BundleManifestError
from heterocc.artifacts.reader import open_bundle
from tests.artifacts.bundle_forge import edited, pack
from tests.artifacts.bundle_sample import write_sample

Edit = Callable[[Any], None]


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    write_sample(tmp_path / "m.hcb", dynamic=True, contained=True)
    return tmp_path / "m.hcb"


def test_a_bundle_with_sequences_in_code_has_version_6(sample: Path) -> None:
    with open_bundle(sample) as bundle:
        assert (bundle.manifest.version.major, bundle.manifest.version.minor) == (6, 0)
        value = bundle.manifest.variants[1].values[2]
        assert (value.dtype, value.shape, value.elements) == ("seq(tensor(float))", None, (None, 3))


def older(manifest: Any) -> None:
    manifest["version"] = {"major": 5, "minor": 0}


def on_a_gpu(manifest: Any) -> None:
    manifest["variants"][0]["partitions"][0]["sequences"] = True


def in_onnx(manifest: Any) -> None:
    manifest["variants"][0]["partitions"][2]["sequences"] = True


def unsaid(manifest: Any) -> None:
    del manifest["variants"][1]["partitions"][0]["sequences"]


def elements_of_a_tensor(manifest: Any) -> None:
    manifest["variants"][1]["values"][0]["elements"] = [1]


def of_texts(manifest: Any) -> None:
    manifest["variants"][1]["values"][2].update(dtype="seq(tensor(string))", elements=None)


def elements_with_a_name(manifest: Any) -> None:
    manifest["variants"][1]["values"][2]["elements"] = ["n"]


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (older, "has sequences, which its device or the bundle's version does not allow"),
        (on_a_gpu, "has sequences, which its device or the bundle's version does not allow"),
        (in_onnx, "is not compiled code, but has sequences of its own"),
        (unsaid, r"value 's' is seq\(tensor\(float\)\), which no device computes"),
        (elements_of_a_tensor, "value 'x' .* is float32 and has the shape of elements"),
        (of_texts, r"is seq\(tensor\(string\)\), which no device computes"),
        (elements_with_a_name, "malformed at"),
    ],
)
def test_sequences_that_break_a_rule_are_refused(sample: Path, tmp_path: Path, edit: Edit, match: str) -> None:
    pack(tmp_path / "bad.hcb", edited(sample, edit))
    with pytest.raises(BundleManifestError, match=match):
        open_bundle(tmp_path / "bad.hcb")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("seq(tensor(float))", Container("float32", sequence=True, optional=False)),
        ("optional(tensor(double))", Container("float64", sequence=False, optional=True)),
        ("optional(seq(tensor(int64)))", Container("int64", sequence=True, optional=True)),
        ("float32", None),
        ("tensor(float)", None),
        ("seq(tensor(float32))", None),
        ("seq(tensor(string))", None),
        ("seq(optional(tensor(float)))", None),
        ("seq(map(int64,tensor(float)))", None),
        ("seq(tensor(float)", None),
    ],
)
def test_the_text_of_a_type_is_read(text: str, found: Container | None) -> None:
    assert container(text) == found
    assert found is None or found.text == text
