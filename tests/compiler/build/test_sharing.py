"""Weights that a bundle stores plain, because code reads them in several layouts."""

from __future__ import annotations

import dataclasses

import numpy as np

from heterocc.artifacts.manifest import Layout
from heterocc.compiler.build.sharing import plain_weights
from heterocc.compiler.importer.digests import Digests
from heterocc.compiler.lower.arranged import Arranged, block, layout
from heterocc.compiler.lower.backend import LoweredPartition

PLAIN = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)


def swapped(groups: int) -> Layout:
    """The rows of PLAIN in `groups`, columns first in each."""
    size = 64 // groups
    found = layout((groups, 32, size), [block([(groups, size * 32, size * 32), (32, 1, size), (size, 32, 1)])])
    assert found is not None
    return found


def partition(*params: tuple[np.ndarray, Arranged | None]) -> LoweredPartition:
    arrays, arranged = zip(*params, strict=True)
    return LoweredPartition("tvm", b"", arrays, tuple(f"w{i}" for i in range(len(arrays))), (), arranged=arranged)


def packed(groups: int, source: np.ndarray = PLAIN) -> tuple[np.ndarray, Arranged]:
    array = np.ascontiguousarray(source.reshape(groups, -1, 32).swapaxes(1, 2))
    return array, Arranged(source, swapped(groups))


def test_a_weight_that_is_read_in_one_layout_is_stored_in_it() -> None:
    assert plain_weights([partition(packed(4)), partition(packed(4, PLAIN.copy()))], Digests()) == [{}, {}]


def test_a_weight_that_is_read_in_several_layouts_is_stored_plain() -> None:
    two = plain_weights([partition(packed(4)), partition((PLAIN, None), packed(8, PLAIN.copy()))], Digests())
    assert [list(stored) for stored in two] == [[0], [1]]
    with_plain = plain_weights([partition(packed(4)), partition((PLAIN.copy(), None))], Digests())
    assert [list(stored) for stored in with_plain] == [[0], []]


def test_a_layout_that_makes_a_weight_much_larger_is_made_at_load() -> None:
    source = np.random.default_rng(1).standard_normal((32, 16, 3, 3)).astype(np.float32)
    for rows, stored in ((4, False), (6, True)):
        matrix = np.vstack([np.eye(3), np.ones((rows - 3, 3))])
        found = layout((rows * rows, 512), [block([(512, 9, 1)], planes=512)], matrix.tolist())
        assert found is not None
        array = (np.kron(matrix, matrix) @ source.reshape(512, 9).T).astype(np.float32)
        (kept,) = plain_weights([partition((array, Arranged(source, found)))], Digests())
        assert bool(kept) == stored


def test_small_weights_are_stored_as_they_are_read() -> None:
    small = PLAIN[:, :8].copy()
    arranged = Arranged(small, Layout(shape=(512,), blocks=(block([(8, 1, 64), (64, 8, 1)]),)))
    array = np.ascontiguousarray(small.T).reshape(-1)
    assert plain_weights([partition((array, arranged)), partition((small, None))], Digests()) == [{}, {}]


def test_a_layout_that_does_not_give_the_weight_is_not_used() -> None:
    array, arranged = packed(4)
    other = dataclasses.replace(arranged, layout=swapped(8))
    assert plain_weights([partition((array, other)), partition((PLAIN, None))], Digests()) == [{}, {}]
    large = Layout(shape=(2**20,), blocks=arranged.layout.blocks)
    partitions = [partition((np.zeros(2**20, np.float32), Arranged(PLAIN, large))), partition((PLAIN, None))]
    assert plain_weights(partitions, Digests()) == [{}, {}]
