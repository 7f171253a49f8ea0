"""A small bundle with any byte changed, cut anywhere: a typed error or the identical content, nothing else."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterocc.artifacts.errors import BundleError
from heterocc.artifacts.reader import open_bundle
from tests.artifacts.bundle_sample import write_sample

Content = tuple[object, tuple[bytes, ...], tuple[bytes, ...]]


def content(path: Path) -> Content:
    """All that a reader of the bundle can see, every hash checked; BundleError if anything is wrong."""
    with open_bundle(path) as bundle:
        members = tuple(bytes(bundle.member(name)) for name in bundle.member_names)
        bundle.verify_weights(threads=1)
        weights = tuple(bundle.weights_view(i).tobytes() for i in range(len(bundle.manifest.weights)))
        return bundle.manifest, members, weights


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "m.hcb"
    write_sample(path, replacing=True)
    return path


@pytest.fixture(scope="module")
def file() -> Iterator[int]:
    """A file in memory: cutting and writing a mapped file again takes milliseconds on a disk."""
    fd = os.memfd_create("bundle")
    yield fd
    os.close(fd)


def outcome(file: int, data: bytes, expected: Content) -> bool:
    """Whether `data` was refused; fails if it was read as anything but `expected`."""
    os.ftruncate(file, len(data))
    os.pwrite(file, data, 0)
    try:
        assert content(Path(f"/proc/self/fd/{file}")) == expected
    except BundleError as error:
        assert error.code.startswith("HC30") and error.where and error.hint
        return True
    return False


def test_every_byte_changed_is_an_error_or_the_identical_content(sample: Path, file: int) -> None:
    data, expected = sample.read_bytes(), content(sample)
    rng = random.Random(7)
    kept = []
    for at in range(len(data)):
        change = 0xFF if at % 2 else 1 << rng.randrange(8)
        if not outcome(file, data[:at] + bytes([data[at] ^ change]) + data[at + 1 :], expected):
            kept.append(at)
    # Padding, time stamps and the like carry nothing; all else must be noticed.
    padding = {at for at in kept if 60 <= at < 4096}
    assert len(padding) > 4000
    assert len(kept) - len(padding) < 40 * len(expected[1]) + 300
    first = data.index(b"\x7fELF")
    assert not any(at in kept for at in range(first, first + 20))
    manifest = data.index(b'{"format"')
    assert not any(at in kept for at in range(manifest, manifest + 3000))


def test_a_bundle_cut_at_any_length_is_refused(sample: Path, file: int) -> None:
    data, expected = sample.read_bytes(), content(sample)
    for length in range(len(data)):
        assert outcome(file, data[:length], expected)


def test_every_byte_doubled_or_dropped_is_refused(sample: Path, file: int) -> None:
    data, expected = sample.read_bytes(), content(sample)
    for at in range(0, len(data), 7):
        assert outcome(file, data[:at] + data[at + 1 :], expected)
        assert outcome(file, data[:at] + data[at : at + 1] + data[at:], expected)


@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(st.tuples(st.integers(4096, 9000), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4))
def test_several_places_overwritten_are_an_error_or_the_identical_content(
    sample: Path, file: int, places: list[tuple[int, bytes]]
) -> None:
    data, expected = bytearray(sample.read_bytes()), content(sample)
    for at, new in places:
        data[at : at + len(new)] = new
    outcome(file, bytes(data), expected)


def test_damage_after_a_good_verification_is_still_found(sample: Path, tmp_path: Path) -> None:
    data, expected = sample.read_bytes(), content(sample)
    path = tmp_path / "x.hcb"
    path.write_bytes(data)
    assert content(path) == expected
    for at in range(4096, 4096 + 48):
        with path.open("r+b") as file:  # in place, in the same inode, within the same tick of the clock
            file.seek(at)
            file.write(bytes([data[at] ^ 1]))
        with pytest.raises(BundleError):
            content(path)
        path.write_bytes(data)
