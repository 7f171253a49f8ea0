from __future__ import annotations

import json
import re
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from heterocc.artifacts import container
from heterocc.artifacts.errors import BundleError, BundleHashError, BundleVersionError
from heterocc.artifacts.manifest import FORMAT_MAJOR, FORMAT_MINOR, Compressed
from heterocc.artifacts.reader import open_bundle
from tests.artifacts.bundle_forge import contents, edited, pack, with_manifest
from tests.artifacts.bundle_sample import write_sample

LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    write_sample(tmp_path / "m.hcb")
    return tmp_path / "m.hcb"


def refused(path: Path, data: bytes, match: str) -> None:
    path.write_bytes(data)
    with pytest.raises(BundleError, match=match) as caught:
        open_bundle(path)
    assert caught.value.where == str(path) and caught.value.hint


def records(data: bytes, name: bytes) -> tuple[int, int]:
    """The offsets of a member's local header and directory record."""
    local = next(m.start() for m in re.finditer(re.escape(LOCAL), data) if data[m.start() + 30 :].startswith(name))
    central = next(m.start() for m in re.finditer(re.escape(CENTRAL), data) if data[m.start() + 46 :].startswith(name))
    return local, central


def patched(data: bytes, at: int, form: str, *values: int | bytes) -> bytes:
    copy = bytearray(data)
    struct.pack_into(form, copy, at, *values)
    return bytes(copy)


def test_the_forge_makes_good_bundles_if_nothing_is_wrong(sample: Path, tmp_path: Path) -> None:
    pack(tmp_path / "again.hcb", contents(sample))
    assert (tmp_path / "again.hcb").read_bytes() == sample.read_bytes()


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "is empty, not a bundle"),
        (b"x" * 21, "is a text file, not a bundle"),
        (b"\1" * 21, "shorter than"),
        (b"\1" * 5000, "does not end with a zip"),
        (END + bytes(18), "no member 'manifest.json'"),
        (b"\x7fELF" + bytes(100), "a shared library, not a bundle"),
    ],
)
def test_what_is_no_zip_is_refused(tmp_path: Path, data: bytes, match: str) -> None:
    refused(tmp_path / "m.hcb", data, match)


def test_a_zip_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.hcb", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(BundleError, match=r"no member 'manifest\.json'"):
        open_bundle(tmp_path / "m.hcb")


@pytest.mark.parametrize(
    ("offset", "form", "value", "match"),
    [
        (8, "<H", 1, "flags"),  # encrypted
        (8, "<H", 8, "flags"),  # data descriptor
        (8, "<H", 0x800, "flags"),
        (10, "<H", 8, "compressed"),
        (10, "<H", 99, "compressed"),
        (16, "<I", 1, "contradicts"),
        (20, "<I", 5, "two different sizes"),
        (24, "<I", 5, "two different sizes"),
        (20, "<II", (2**31, 2**31), "outside the file"),
        (20, "<II", (7, 7), "contradicts"),
        (20, "<II", (2**32 - 1, 2**32 - 1), "zip64 sizes"),
        (28, "<H", 9, "name that is not allowed|malformed"),
        (30, "<H", 4, "malformed"),
        (32, "<H", 1, "malformed"),
        (34, "<H", 1, "malformed"),
        (38, "<I", (stat.S_IFLNK | 0o777) << 16, "not a regular file"),
        (38, "<I", (stat.S_IFDIR | 0o755) << 16, "not a regular file"),
        (38, "<I", (stat.S_IFIFO | 0o755) << 16, "not a regular file"),
        (42, "<I", 0, "not at"),
        (42, "<I", 2**32 - 2, "not at"),
        (46, "10s", b"code/p1.so", "two members are named"),
        (46, "10s", b"/ode/p0.so", "name that is not allowed"),
        (46, "10s", b"../../p.so", "name that is not allowed"),
        (46, "10s", b"code/../so", "name that is not allowed"),
        (46, "10s", b"code\\p0.so", "name that is not allowed"),
        (46, "10s", b"code/p0\0so", "name that is not allowed"),
        (46, "10s", b"code/p0\xffso", "name that is not allowed"),
        (46, "10s", b"code/pX.so", "malformed"),
    ],
)
def test_a_forged_directory_record_is_refused(
    sample: Path, offset: int, form: str, value: int | bytes | tuple[int, ...], match: str
) -> None:
    data = sample.read_bytes()
    _, central = records(data, b"code/p0.so")
    values = value if isinstance(value, tuple) else (value,)
    refused(sample, patched(data, central + offset, form, *values), match)


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [
        *[(0, "4s", b"PK\x03\x05"), (6, "<H", 1), (8, "<H", 8), (14, "<I", 1), (18, "<I", 5), (22, "<I", 5)],
        *[(26, "<H", 9), (28, "<H", 60000), (30, "10s", b"code/p9.so"), (18, "<II", (2**32 - 1, 2**32 - 1))],
    ],
)
def test_a_forged_local_header_is_refused(
    sample: Path, offset: int, form: str, value: int | bytes | tuple[int, ...]
) -> None:
    data = sample.read_bytes()
    local, _ = records(data, b"code/p0.so")
    values = value if isinstance(value, tuple) else (value,)
    refused(sample, patched(data, local + offset, form, *values), "member 'code/p0.so'")


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [
        *[(4, "<H", 1), (6, "<H", 1), (8, "<H", 3), (10, "<H", 3), (12, "<I", 0), (12, "<I", 2**32 - 2)],
        *[(16, "<I", 0), (16, "<I", 2**32 - 2), (20, "<H", 1), (8, "<HH", (65535, 65535)), (12, "<I", 2**32 - 1)],
        *[(8, "<HH", (0, 0)), (8, "<HH", (10, 10)), (8, "<HH", (12, 12)), (8, "<HHI", (0, 0, 0))],
    ],
)
def test_a_forged_end_record_is_refused(sample: Path, offset: int, form: str, value: int | tuple[int, ...]) -> None:
    data = sample.read_bytes()
    values = value if isinstance(value, tuple) else (value,)
    refused(sample, patched(data, len(data) - 22 + offset, form, *values), "zip|directory|no member")


def test_bytes_before_between_and_behind_are_refused(sample: Path) -> None:
    data = sample.read_bytes()
    refused(sample, b"x" + data, "directory")
    refused(sample, data + b"x", "does not end with a zip")
    refused(sample, data[:-2] + b"\x05\0" + b"hello", "does not end with a zip")


def test_members_that_overlap_are_refused(tmp_path: Path, sample: Path) -> None:
    members = contents(sample)
    entries = []
    with (tmp_path / "o.hcb").open("wb") as file:
        for name, data in members.items():
            start = file.tell()
            header = container.local_header(name, len(data), 0, None if start else 4096)
            file.write(header + data)
            entries.append(container.Entry(name, len(data), 0, start, 0))
        twin = container.Entry("code/again.so", len(members["code/p0.so"]), 0, entries[1].header, 0)
        file.write(container.directory([*entries, twin], file.tell()))
    with pytest.raises(BundleError, match=r"'code/again\.so' is at offset"):
        open_bundle(tmp_path / "o.hcb")


def test_a_packed_again_bundle_says_that_it_is_compressed(tmp_path: Path, sample: Path) -> None:
    with zipfile.ZipFile(tmp_path / "z.hcb", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents(sample).items():
            archive.writestr(name, data)
    with pytest.raises(BundleError, match="compressed"):
        open_bundle(tmp_path / "z.hcb")


def test_weights_that_are_not_at_a_page_are_refused(tmp_path: Path, sample: Path) -> None:
    with zipfile.ZipFile(tmp_path / "z.hcb", "w", zipfile.ZIP_STORED) as archive:
        for name, data in contents(sample).items():
            archive.writestr(name, data)
    with pytest.raises(BundleError, match="4096-byte boundary"):
        open_bundle(tmp_path / "z.hcb")


def test_a_zip_bomb_is_refused_without_unpacking_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "z.hcb", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", bytes(50 * 2**20))
        archive.writestr("manifest.sha256", "0" * 64 + "\n")
    with pytest.raises(BundleError, match="compressed"):
        open_bundle(tmp_path / "z.hcb")


def test_too_large_a_manifest_is_refused_before_it_is_read(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterocc.artifacts.reader.MAX_MANIFEST", 100)
    with pytest.raises(BundleError, match="invalid size"):
        open_bundle(sample)


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    members = {f"m{i}": b"" for i in range(container.MAX_MEMBERS + 1)}
    pack(tmp_path / "m.hcb", members)
    with pytest.raises(BundleError, match="more than a bundle may have"):
        open_bundle(tmp_path / "m.hcb")


def test_a_manifest_that_is_not_what_its_digest_says_is_refused(tmp_path: Path, sample: Path) -> None:
    members = contents(sample)
    for name, data in (("manifest.json", members["manifest.json"] + b" "), ("manifest.sha256", b"0" * 64 + b"\n")):
        pack(tmp_path / "x.hcb", {**members, name: data})
        with pytest.raises(BundleHashError, match=r"'manifest\.json'"):
            open_bundle(tmp_path / "x.hcb")


def test_a_signature_is_ignored_and_another_stray_member_is_not(tmp_path: Path, sample: Path) -> None:
    pack(tmp_path / "s.hcb", {**contents(sample), "manifest.sig": b"signature"})
    assert "manifest.sig" not in open_bundle(tmp_path / "s.hcb").member_names
    pack(tmp_path / "s.hcb", {**contents(sample), "stray": b""})
    with pytest.raises(BundleError, match="'stray' is in the file but not in the manifest"):
        open_bundle(tmp_path / "s.hcb")


def test_zip64_is_written_only_where_needed_and_read_everywhere(
    tmp_path: Path, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = sample.read_bytes()
    assert b"PK\x06\x06" not in small
    members = contents(sample)
    monkeypatch.setattr(container, "_MAX32", 300)  # as if 300 bytes were 4 GiB
    write_sample(tmp_path / "big.hcb")
    big = (tmp_path / "big.hcb").read_bytes()
    assert b"PK\x06\x06" in big and b"PK\x06\x07" in big
    # What was written with another limit names sizes of 300 bytes; make the marks those of the format.
    mark = struct.pack("<I", 300)
    fixed = bytearray(big)
    for name in members:
        local, central = records(big, name.encode())
        for at in (local + 18, local + 22, central + 20, central + 24, central + 42):
            if big[at : at + 4] == mark:
                fixed[at : at + 4] = b"\xff" * 4
    for at in (len(big) - 10, len(big) - 6):
        if big[at : at + 4] == mark:
            fixed[at : at + 4] = b"\xff" * 4
    monkeypatch.undo()
    (tmp_path / "big.hcb").write_bytes(fixed)
    assert contents(tmp_path / "big.hcb") == members
    open_bundle(tmp_path / "big.hcb").verify()
    end = len(fixed) - 22 - 20 - 56
    changes: list[tuple[int, str, int]] = [(end, "<I", 0), (end + 4, "<Q", 1), (end + 16, "<I", 1), (end + 24, "<Q", 1)]
    changes += [(end + 40, "<Q", 2**63), (end + 48, "<Q", 2**63), (end + 56, "<I", 0), (end + 64, "<Q", 2**63)]
    _, central = records(bytes(fixed), b"weights.bin")
    changes += [(central + 46 + 11, "<H", 9), (central + 46 + 13, "<H", 24), (central + 46 + 13, "<H", 60000)]
    changes += [(central + 46 + 15, "<Q", 2**64 - 1)]
    for at, form, value in changes:
        refused(tmp_path / "x.hcb", patched(bytes(fixed), at, form, value), "zip|directory|sizes|outside|members")


def test_a_file_cut_short_after_it_was_opened_is_a_bundle_error(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = container.Container.__init__

    def cut(self: container.Container, fd: int, size: int) -> None:
        real(self, fd, size)
        with sample.open("r+b") as file:
            file.truncate(1000)

    monkeypatch.setattr(container.Container, "__init__", cut)
    with pytest.raises(BundleError, match="shorter while"):
        open_bundle(sample)


# ---- versions -----------------------------------------------------------------------------------------------------


def version(major: object, minor: object) -> Callable[[dict[str, object]], object]:
    return lambda manifest: manifest.update(version={"major": major, "minor": minor})


def test_another_major_version_is_refused_naming_both(tmp_path: Path, sample: Path) -> None:
    for major in (0, 8, 10**30):
        pack(tmp_path / "v.hcb", edited(sample, version(major, 3)))
        with pytest.raises(
            BundleVersionError, match=r"version (0|8|huge)\.3, but this heterocc reads 1\.x to 7\.x"
        ) as caught:
            open_bundle(tmp_path / "v.hcb")
        assert caught.value.hint and caught.value.where == str(tmp_path / "v.hcb")


def test_the_version_is_looked_at_before_anything_else(tmp_path: Path) -> None:
    version = b'{"major": %d, "minor": 0}' % (FORMAT_MAJOR + 1)
    text = b'{"format": "heterocc-bundle", "version": ' + version + b', "all": "else is new"}'
    members = with_manifest({"strange": b"compressed, for all we know"}, text)
    pack(tmp_path / "v.hcb", members)
    data = (tmp_path / "v.hcb").read_bytes()
    _, central = records(data, b"strange")
    (tmp_path / "v.hcb").write_bytes(patched(data, central + 10, "<H", 8))
    with pytest.raises(BundleVersionError):
        open_bundle(tmp_path / "v.hcb")


def test_a_newer_minor_version_is_read_and_its_fields_ignored(tmp_path: Path, sample: Path) -> None:
    def newer(manifest: dict[str, object]) -> None:
        version(1, 7)(manifest)
        manifest["mood"] = {"good": [1, 2]}
        manifest["variants"][0]["colour"] = "blue"  # type: ignore[index]
        manifest["weights"][0]["scale"] = 1.5  # type: ignore[index]

    pack(tmp_path / "v.hcb", edited(sample, newer))
    bundle = open_bundle(tmp_path / "v.hcb")
    bundle.verify()
    assert bundle.manifest.version.minor == 7
    assert bundle.manifest.variants == open_bundle(sample).manifest.variants


GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("bundle-*.hcb")), ids=lambda p: p.stem)
def test_a_bundle_of_every_released_minor_version_is_still_read(path: Path) -> None:
    bundle = open_bundle(path)
    bundle.verify()
    found = bundle.manifest.version
    assert path.stem == f"bundle-{found.major}.{found.minor}"
    assert bundle.manifest.variants[0].partitions[2].kind == "onnx"
    assert bundle.weights_view(0)[2, 3] == 11


def test_there_is_a_bundle_of_the_current_version() -> None:
    assert (GOLDEN / f"bundle-{FORMAT_MAJOR}.{FORMAT_MINOR}.hcb").is_file()


def test_a_bundle_has_the_bytes_of_the_current_version(tmp_path: Path) -> None:
    write_sample(tmp_path / "m.hcb", faults=("HETEROCC_TEST_WRONG_KERNEL",))
    assert (tmp_path / "m.hcb").read_bytes() == (GOLDEN / "bundle-1.2.hcb").read_bytes()
    write_sample(tmp_path / "m.hcb", faults=("HETEROCC_TEST_WRONG_KERNEL",), arranged=True)
    assert (tmp_path / "m.hcb").read_bytes() == (GOLDEN / "bundle-2.0.hcb").read_bytes()
    write_sample(tmp_path / "m.hcb", faults=("HETEROCC_TEST_WRONG_KERNEL",), arranged=True, dynamic=True)
    assert (tmp_path / "m.hcb").read_bytes() == (GOLDEN / "bundle-3.0.hcb").read_bytes()
    write_sample(tmp_path / "m.hcb", faults=("HETEROCC_TEST_WRONG_KERNEL",), arranged=True, dynamic=True, rooms=True)
    assert (tmp_path / "m.hcb").read_bytes() == (GOLDEN / "bundle-3.1.hcb").read_bytes()
    faults = ("HETEROCC_TEST_WRONG_KERNEL",)
    write_sample(tmp_path / "m.hcb", faults=faults, arranged=True, dynamic=True, rooms=True, step=8)
    assert (tmp_path / "m.hcb").read_bytes() == (GOLDEN / "bundle-4.0.hcb").read_bytes()
    write_sample(tmp_path / "m.hcb", faults=faults, arranged=True, dynamic=True, rooms=True, step=8, widened=True)
    assert (tmp_path / "m.hcb").read_bytes() == (GOLDEN / "bundle-5.0.hcb").read_bytes()
    every = {"arranged": True, "dynamic": True, "rooms": True, "widened": True, "contained": True}
    write_sample(tmp_path / "m.hcb", faults=faults, step=8, **every)
    assert (tmp_path / "m.hcb").read_bytes() == (GOLDEN / "bundle-6.0.hcb").read_bytes()
    write_sample(tmp_path / "m.hcb", faults=faults, step=8, conditioned=True, **every)
    assert (tmp_path / "m.hcb").read_bytes() == (GOLDEN / "bundle-7.0.hcb").read_bytes()
    form = Compressed(form="int4:block=32", keep=("head",))
    write_sample(tmp_path / "m.hcb", faults=faults, step=8, conditioned=True, compressed=form, **every)
    assert (tmp_path / "m.hcb").read_bytes() == (GOLDEN / "bundle-7.1.hcb").read_bytes()
    write_sample(tmp_path / "m.hcb", faults=faults, step=8, conditioned=True, compressed=form, replacing=True, **every)
    assert (tmp_path / "m.hcb").read_bytes() == (GOLDEN / "bundle-7.2.hcb").read_bytes()


def test_a_bundle_without_simulated_failures_has_no_field_for_them(tmp_path: Path) -> None:
    write_sample(tmp_path / "m.hcb")
    with zipfile.ZipFile(tmp_path / "m.hcb") as file:
        assert "faults" not in json.loads(file.read("manifest.json"))
