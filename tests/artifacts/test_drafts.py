"""Bundles that take over the weights of one that was written for the same path before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import InternalError
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.weights.weight_file import Draft
from tests.artifacts.test_round_trip import bundle_of, write_bundle

LARGE = [np.random.default_rng(n).standard_normal(100_000 + n) for n in range(3)]
SMALL = [np.arange(5.0), np.zeros((0, 2)), np.array(3)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LARGE, LARGE),
        (LARGE[:2], LARGE),
        (LARGE, LARGE[:1]),
        (LARGE, [LARGE[0], SMALL[0], LARGE[1]]),
        (LARGE, [SMALL[0], *LARGE]),
        ([*SMALL, *LARGE], [*SMALL, LARGE[0], LARGE[0], LARGE[2]]),
        (LARGE, [LARGE[0].reshape(2, -1), LARGE[1]]),
        (LARGE, []),
        ([], LARGE),
    ],
)
@pytest.mark.parametrize("exists", [False, True])
def test_a_bundle_from_a_draft_is_the_one_without_it(
    tmp_path: Path, before: list[np.ndarray], after: list[np.ndarray], exists: bool
) -> None:
    bundle_of(tmp_path / "plain.hcb", after).close()
    target = tmp_path / "m.hcb"
    if exists:
        bundle_of(target, after).close()
    with Draft(target) as draft:
        write_bundle(target, before, into=draft)
        assert draft.path is not None and target.exists() == exists
        with open_bundle(draft.path) as bundle:
            bundle.verify()
            assert len(bundle.manifest.weights) == len(before)
        write_bundle(target, after, draft=draft)
        assert draft.path is None
    assert target.read_bytes() == (tmp_path / "plain.hcb").read_bytes()
    assert {p.name for p in tmp_path.iterdir()} == {"plain.hcb", "m.hcb"}


def test_weights_that_a_draft_has_are_not_written_again(tmp_path: Path) -> None:
    target = tmp_path / "m.hcb"
    with Draft(target) as draft:
        write_bundle(target, LARGE, into=draft)
        assert draft.path is not None
        with draft.path.open("r+b") as file:  # it would be written right
            file.seek(4096)
            file.write(b"damaged!")
        write_bundle(target, LARGE, draft=draft)
    assert b"damaged!" in target.read_bytes()


def test_a_draft_that_nobody_takes_is_removed_and_the_old_bundle_stays(tmp_path: Path) -> None:
    target = tmp_path / "m.hcb"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), Draft(target) as draft:
        write_bundle(target, LARGE, into=draft)
        raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["m.hcb"] and target.read_bytes() == b"old"


def test_a_draft_is_written_once(tmp_path: Path) -> None:
    target = tmp_path / "m.hcb"
    with Draft(target) as draft:
        write_bundle(target, LARGE, into=draft)
        with pytest.raises(InternalError):
            write_bundle(target, LARGE, into=draft)
    assert not list(tmp_path.iterdir())
