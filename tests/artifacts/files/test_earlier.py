from __future__ import annotations

import hashlib
import os
import random
import zlib
from pathlib import Path

import pytest

from heterocc.artifacts.errors import OutputFileError
from heterocc.artifacts.files import earlier
from heterocc.artifacts.files.atomic import AtomicFile
from heterocc.artifacts.files.earlier import HEAD
from tests.artifacts.bundle_sample import write_sample

LENGTH = HEAD + 3_000_000


def written(path: Path, data: bytes, patches: dict[int, bytes], rng: random.Random) -> bytes:
    """Write data in pieces of random lengths, then the patches, over what is at the path; what the file shall be."""
    file = AtomicFile(path, compare=True)
    done = 0
    while done < len(data):
        step = rng.choice((1, 100, HEAD, 1_500_000))
        file.write(data[done : done + step])
        done += step
    expected = bytearray(data)
    for offset, piece in patches.items():
        file.patch(offset, piece)
        expected[offset : offset + len(piece)] = piece
    file.commit()
    file.discard()
    return bytes(expected)


def test_an_equal_file_stays_and_gets_a_new_time(tmp_path: Path) -> None:
    target = tmp_path / "m.hcb"
    write_sample(target, code=b"code" * 500_000)
    os.utime(target, (1, 1))
    before, content = target.stat(), target.read_bytes()
    write_sample(target, code=b"code" * 500_000)
    after = target.stat()
    assert (after.st_ino, target.read_bytes()) == (before.st_ino, content)
    assert after.st_mtime > before.st_mtime
    assert [p.name for p in tmp_path.iterdir()] == ["m.hcb"]


@pytest.mark.parametrize("place", [0, HEAD - 1, HEAD, HEAD + 1_048_576, LENGTH - 1])
def test_one_other_byte_anywhere_makes_a_new_file(tmp_path: Path, place: int) -> None:
    rng = random.Random(place)
    data = rng.randbytes(LENGTH)
    old = bytearray(data)
    old[place] ^= 1
    target = tmp_path / "file"
    target.write_bytes(old)
    before = target.stat().st_ino
    with target.open("rb") as held:
        assert written(target, data, {}, rng) == target.read_bytes()
        assert held.read() == old, "a reader of the old file sees no change"
    assert target.stat().st_ino != before


@pytest.mark.parametrize("seed", range(20))
def test_whatever_was_there_the_file_has_what_was_written(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(rng.choice((10, HEAD, LENGTH)))
    patches = {
        offset: rng.randbytes(rng.randint(1, 40))
        for offset in (rng.randrange(len(data)) for _ in range(rng.randint(0, 2)))
        if offset + 40 <= len(data)
    }
    target = tmp_path / "file"
    expected = written(target, data, patches, rng)
    assert target.read_bytes() == expected
    old = expected
    match rng.randrange(4):
        case 0:
            old = expected[: rng.randrange(len(expected))]
        case 1:
            old = expected + b"more"
        case 2:
            changed = bytearray(expected)
            changed[rng.randrange(len(changed))] ^= 1
            old = bytes(changed)
    target.write_bytes(old)
    assert written(target, data, patches, rng) == expected
    assert target.read_bytes() == expected
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("seed", range(20))
def test_bytes_of_which_only_the_digest_is_known_stay_if_the_file_has_them(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    pieces = [rng.randbytes(rng.choice((1, 1000, HEAD, 1_500_000))) for _ in range(6)]
    data, changed, target = b"".join(pieces) + b"end", rng.randrange(3), tmp_path / "file"
    data += bytes(max(0, HEAD - len(data)))
    old = bytearray(data)
    if changed:
        old[rng.randrange(len(data))] ^= 1
    target.write_bytes(old[: -rng.randrange(1, len(old))] if changed == 2 else old)
    file, crc, there = AtomicFile(target, compare=True), 0, []
    for piece in pieces:
        kept = file.keep(len(piece), hashlib.sha256(piece).hexdigest(), crc)
        there.append(kept is not None)
        if kept is None:
            file.write(piece)
        crc = zlib.crc32(piece, crc)
        assert kept in (None, crc)
    file.write(data[sum(map(len, pieces)) :])
    file.commit()
    file.discard()
    assert target.read_bytes() == data and [p.name for p in tmp_path.iterdir()] == ["file"]
    assert all(there) or changed


def test_nothing_is_kept_of_a_file_that_is_not_compared(tmp_path: Path) -> None:
    data = bytes(HEAD)
    target = tmp_path / "file"
    target.write_bytes(data)
    file = AtomicFile(target)
    assert file.keep(len(data), hashlib.sha256(data).hexdigest(), 0) is None
    file.discard()


@pytest.mark.parametrize("size", [LENGTH, HEAD + 10])
def test_a_file_changed_while_it_is_compared_is_an_error(tmp_path: Path, size: int) -> None:
    data = random.Random(0).randbytes(LENGTH)
    target = tmp_path / "file"
    target.write_bytes(data)
    os.utime(target, (1, 1))
    file = AtomicFile(target, compare=True)
    file.write(data)
    with target.open("r+b") as other:
        other.seek(HEAD + 7)
        other.write(bytes([data[HEAD + 7] ^ 1]))
        other.truncate(size)
    with pytest.raises(OutputFileError, match="another process changed the file"):
        file.commit()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_file_replaced_while_it_is_compared_is_replaced_again(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(LENGTH)
    target, other = tmp_path / "file", tmp_path / "other"
    target.write_bytes(data)
    other.write_bytes(b"other")
    file = AtomicFile(target, compare=True)
    file.write(data)
    other.replace(target)
    file.commit()
    assert target.read_bytes() == data


def test_an_earlier_file_that_cannot_be_compared_is_replaced(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"short")
    link = tmp_path / "link"
    link.symlink_to(short)
    assert earlier.EarlierFile.at(short) is None
    assert earlier.EarlierFile.at(link) is None
    assert earlier.EarlierFile.at(tmp_path) is None
    assert earlier.EarlierFile.at(tmp_path / "none") is None
