"""Conditions of sizes in a manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterocc.artifacts.errors import BundleManifestError
from heterocc.artifacts.reader import open_bundle
from tests.artifacts.bundle_forge import edited, pack
from tests.artifacts.bundle_sample import write_sample

Edit = Callable[[Any], None]


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    write_sample(tmp_path / "m.hcb", dynamic=True, conditioned=True)
    return tmp_path / "m.hcb"


def test_a_bundle_with_conditions_has_version_7(sample: Path) -> None:
    with open_bundle(sample) as bundle:
        assert (bundle.manifest.version.major, bundle.manifest.version.minor) == (7, 0)
        (needed,) = bundle.manifest.variants[2].conditions
        assert (needed.left, needed.relation, needed.right) == (("$batch", 1, "+", 2, "//"), "at_least", (2,))


def older(manifest: Any) -> None:
    manifest["version"] = {"major": 6, "minor": 0}


def side(*tokens: object) -> Edit:
    def edit(manifest: Any) -> None:
        manifest["variants"][2]["conditions"][0]["left"] = list(tokens)

    return edit


def another_relation(manifest: Any) -> None:
    manifest["variants"][2]["conditions"][0]["relation"] = "less"


BAD = {
    "of an older version": older,
    "of another relation": another_relation,
    "empty": side(),
    "with an operator of one value": side("$batch", "*"),
    "with two values": side("$batch", 1),
    "with another operator": side("$batch", 1, "-"),
    "of a dimension of no input": side("$length"),
    "with a fraction": side(1.5),
    "too long": side(*([1] * 2048 + ["+"] * 2049)),
    "with a huge number": side(2**80),
}


@pytest.mark.parametrize("edit", BAD.values(), ids=BAD.keys())
def test_a_condition_that_the_format_does_not_have_is_refused(tmp_path: Path, sample: Path, edit: Edit) -> None:
    pack(tmp_path / "bad.hcb", edited(sample, edit))
    with pytest.raises(BundleManifestError):
        open_bundle(tmp_path / "bad.hcb")
