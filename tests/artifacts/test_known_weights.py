"""Weights of which only the digest is known, in a bundle that is written over one that has them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.writer import BundleWriter
from tests.artifacts.test_round_trip import bundle_of, write_bundle

ARRAYS = [np.random.default_rng(n).standard_normal(100_000 + n).astype(np.float32) for n in range(3)]


def known(writer: BundleWriter, array: np.ndarray) -> int | None:
    """Add an array without its elements."""
    digest = hashlib.sha256(array.tobytes()).hexdigest()
    return writer.add_known_weight(array.dtype.name, array.shape, array.nbytes, digest)


@pytest.mark.parametrize(
    ("before", "there"),
    [
        (ARRAYS, [True, True, True]),
        (ARRAYS[:2], [True, True, False]),
        ([ARRAYS[0], ARRAYS[2]], [True, False, False]),
        ([ARRAYS[1], ARRAYS[0]], [False, False, False]),
        ([], [False, False, False]),
    ],
)
def test_a_bundle_with_kept_weights_is_the_one_that_is_written(
    tmp_path: Path, before: list[np.ndarray], there: list[bool]
) -> None:
    bundle_of(tmp_path / "plain.hcb", ARRAYS).close()
    target = tmp_path / "m.hcb"
    bundle_of(target, before).close()
    found: list[bool] = []

    def add(writer: BundleWriter, array: np.ndarray, _: str | None) -> int:
        index = known(writer, array)
        found.append(index is not None)
        return writer.add_weight(array) if index is None else index

    write_bundle(target, ARRAYS, add=add)
    assert found == there
    assert target.read_bytes() == (tmp_path / "plain.hcb").read_bytes()


def test_a_weight_that_was_added_is_known(tmp_path: Path) -> None:
    def add(writer: BundleWriter, array: np.ndarray, _: str | None) -> int:
        assert known(writer, array) is None
        index = writer.add_weight(array)
        assert known(writer, array) == index
        other = known(writer, array.reshape(1, -1))
        assert other not in (None, index)
        assert writer.weight(other or 0).offset == writer.weight(index).offset
        return index

    write_bundle(tmp_path / "m.hcb", ARRAYS[:1], add=add)
