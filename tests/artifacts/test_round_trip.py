from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from heterocc.artifacts.bundle import Bundle, weight_label
from heterocc.artifacts.errors import BundleError, BundleHashError, FileMissingError, InternalError
from heterocc.artifacts.manifest import Device, Manifest, ModelInfo, Partition, Producer, Variant
from heterocc.artifacts.npy import parse_npy
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.weights import verify
from heterocc.artifacts.weights.weight_file import Draft
from heterocc.artifacts.writer import BundleWriter
from tests.artifacts.bundle_sample import CODE, PLAN, spec, weights, write_sample


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    write_sample(tmp_path / "m.hcb")
    return tmp_path / "m.hcb"


def bundle_of(path: Path, arrays: list[np.ndarray], dtypes: list[str | None] | None = None) -> Bundle:
    """A bundle with one partition, whose params are `arrays`."""
    write_bundle(path, arrays, dtypes)
    return open_bundle(path)


def write_bundle(
    path: Path,
    arrays: list[np.ndarray],
    dtypes: list[str | None] | None = None,
    add: Callable[[BundleWriter, np.ndarray, str | None], int] = BundleWriter.add_weight,
    **drafts: Draft,
) -> None:
    """Write the bundle of `bundle_of`, from or into a draft; `add` adds an array to it."""
    with BundleWriter(path, **drafts) as writer:
        names = dtypes or [None] * len(arrays)
        params = tuple(add(writer, a, d) for a, d in zip(arrays, names, strict=True))
        part = Partition(
            name="p0",
            device=0,
            kind="onnx",  # whose weights may have any dtype
            code=writer.add_member("code/p0.so", CODE),
            inputs=(0,),
            outputs=(1,),
            params=params,
            param_names=tuple(f"w{i}" for i in range(len(params))),
            nodes=("n",),
        )
        variant = Variant(
            name="cpu",
            devices=(Device(name="ORT", backend="ort"),),
            values=(spec("x", 1), spec("y", 1)),
            inputs=(0,),
            outputs=(1,),
            partitions=(part,),
            plan=writer.add_member("plan/cpu.txt", PLAN),
            summary="",
        )
        model = ModelInfo(name="m", sha256="0" * 64, opsets={}, inputs=(spec("x", 1),), outputs=(spec("y", 1),))
        writer.finish(producer=Producer(heterocc="0"), model=model, variants=(variant,))


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    written = write_sample(tmp_path / "m.hcb")
    with open_bundle(tmp_path / "m.hcb") as bundle:
        bundle.verify()
        assert bundle.manifest == written
        assert bundle.member("code/p0.so") == CODE
        assert bundle.text("plan/hetero.plan") == PLAN
        np.testing.assert_array_equal(bundle.array("golden/out0.npy"), np.full((1, 3), 2, np.float32))
        for index, array in enumerate(weights()):
            np.testing.assert_array_equal(bundle.weights_view(index), array, strict=True)
        assert bundle.digest == hashlib.sha256(zipfile.ZipFile(bundle.path).read("manifest.json")).hexdigest()


def test_any_zip_tool_opens_a_bundle(sample: Path) -> None:
    with zipfile.ZipFile(sample) as archive:
        assert archive.testzip() is None
        infos = archive.infolist()
        names = [i.filename for i in infos]
        assert names == ["weights.bin", *sorted(names[1:-2]), "manifest.json", "manifest.sha256"]
        assert {i.compress_type for i in infos} == {zipfile.ZIP_STORED}
        assert {i.date_time for i in infos} == {(1980, 1, 1, 0, 0, 0)}
        assert {i.external_attr >> 16 for i in infos} == {0o100644}
        assert json.loads(archive.read("manifest.json"))["version"] == {"major": 1, "minor": 2}


def test_weights_are_mapped_aligned_writable_and_not_copied(sample: Path) -> None:
    before = sample.read_bytes()
    bundle = open_bundle(sample)
    views = [bundle.weights_view(i) for i in range(len(weights()))]
    for view in views:
        assert view.flags.writeable and view.flags.c_contiguous
        assert view.ctypes.data % 64 == 0 or not view.size
    assert np.shares_memory(views[0], bundle.weights_view(0))
    np.from_dlpack(views[0])
    views[0][0, 0] = 99  # private: neither the file nor another mapping sees it
    assert sample.read_bytes() == before
    assert open_bundle(sample).weights_view(0)[0, 0] == 0


def test_views_outlive_a_closed_bundle(sample: Path) -> None:
    bundle = open_bundle(sample)
    view, member = bundle.weights_view(0), bundle.member("code/p0.so")
    bundle.close()
    assert view[2, 3] == 11 and member == CODE
    with pytest.raises(BundleError, match="closed"):
        bundle.member("code/p0.so")
    with pytest.raises(BundleError, match="closed"):
        bundle.weights_view(0)


def test_equal_bytes_are_stored_once_whatever_their_shape(tmp_path: Path) -> None:
    a = np.arange(1000, dtype=np.float32)
    with pytest.raises(InternalError, match="not finished"), BundleWriter(tmp_path / "m.hcb") as writer:
        assert writer.add_weight(a) == writer.add_weight(a.copy()) == 0
        assert writer.add_weight(a.reshape(10, 100)) == 1
        assert writer.add_weight(a.view(np.int32)) == 2
        assert {writer.weight(i).offset for i in range(3)} == {0}
        assert writer.add_weight(a + 1) == 3
        assert writer.weight(3).offset == 4032  # 4000 on the next 64-byte boundary
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.5),
        np.array(True),
        np.zeros((0,), np.int8),
        np.zeros((2, 0, 3), np.complex128),
        np.arange(24, dtype=np.int16).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(10, dtype=np.uint64)[::-2],
        np.arange(5, dtype=">f8"),
        np.broadcast_to(np.float16(1.5), (3, 2)),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
    ids=lambda a: f"{a.dtype.str}{list(a.shape)}",
)
def test_any_array_comes_back(tmp_path: Path, array: np.ndarray) -> None:
    bundle = bundle_of(tmp_path / "m.hcb", [np.ones(3, np.int8), array])
    bundle.verify()
    view = bundle.weights_view(1)
    np.testing.assert_array_equal(view, array)
    assert view.shape == array.shape and view.dtype == array.dtype.newbyteorder("<")


def test_dtypes_that_numpy_lacks_come_back_as_their_bits(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    eighth = np.array([1.0, 0.5], ml_dtypes.float8_e4m3fn)
    bundle = bundle_of(tmp_path / "m.hcb", [half, half.view(np.uint16), eighth], [None, "bfloat16", None])
    assert [w.dtype for w in bundle.manifest.weights] == ["bfloat16", "float8_e4m3fn"]
    np.testing.assert_array_equal(bundle.weights_view(0).view(ml_dtypes.bfloat16), half)
    np.testing.assert_array_equal(bundle.weights_view(1).view(ml_dtypes.float8_e4m3fn), eighth)


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.zeros(2, "i4,f4"), np.zeros(1, "M8[s]")])
def test_an_array_that_the_format_cannot_hold_is_refused(tmp_path: Path, array: np.ndarray) -> None:
    with pytest.raises(InternalError, match="cannot be stored"), BundleWriter(tmp_path / "m.hcb") as writer:
        writer.add_weight(array)
    assert list(tmp_path.iterdir()) == []


def test_a_weight_is_written_without_a_second_copy_of_it(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np\n"
        "from tests.fresh_process import peak\n"
        "from heterocc.artifacts.writer import BundleWriter\n"
        "a = np.memmap(sys.argv[1] + '/w', np.uint8, 'w+', shape=(96 << 20,)); a[::4096] = 1\n"
        "b = np.zeros(8 << 20, np.uint8)\n"
        "before = peak()\n"
        "w = BundleWriter(sys.argv[1] + '/m.hcb')\n"
        "w.add_weight(a); w.add_weight(a[1:])\n"
        "print(peak() - before)\n"
        "w.__exit__(ValueError, ValueError(), None)\n"
    )
    out = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 48 * 1024  # KiB
    assert [p.name for p in tmp_path.iterdir()] == ["w"]


def test_two_processes_with_other_hashing_and_folders_write_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from tests.artifacts.bundle_sample import write_sample; "
        "write_sample(pathlib.Path(sys.argv[1]))"
    )
    results = []
    for seed in ("0", "1", "77"):
        folder = tmp_path / f"folder{seed}"
        folder.mkdir()
        command = [sys.executable, "-c", code, str(folder / f"{seed}.hcb")]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed, "TZ": f"UTC{seed}"})
        results.append((folder / f"{seed}.hcb").read_bytes())
    assert results[0] == results[1] == results[2]


def test_members_lie_in_the_order_of_their_names_not_of_adding(tmp_path: Path) -> None:
    first = bundle_of(tmp_path / "a.hcb", [])
    assert first.member_names == ("code/p0.so", "plan/cpu.txt")
    assert first.manifest.members[0].name == "weights.bin" and first.manifest.members[0].size == 0


def test_a_member_name_is_refused_when_it_is_unsafe_reserved_or_taken(tmp_path: Path) -> None:
    for name in ("", "/etc/x", "../x", "a/../b", "a//b", ".hidden", "a/", "a\\b", "ü", "a" * 256, "a\0", "weights.bin"):
        with pytest.raises(InternalError, match="cannot be named"), BundleWriter(tmp_path / "m.hcb") as writer:
            writer.add_member(name, b"")
    with pytest.raises(InternalError, match="two different"), BundleWriter(tmp_path / "m.hcb") as writer:
        writer.add_member("a", "text")
        writer.add_member("a", b"text")
        writer.add_member("a", b"other")


def test_strings_are_stored_without_pickle_and_other_objects_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="cannot be stored"), BundleWriter(tmp_path / "m.hcb") as writer:
        writer.add_array("a.npy", np.array(["ä", "bc"], dtype=object))
        stored = parse_npy(memoryview(writer._members["a.npy"]), "a.npy")
        np.testing.assert_array_equal(stored, np.array(["ä", "bc"]), strict=True)
        writer.add_array("b.npy", np.array([{}], dtype=object))


def test_the_writer_refuses_what_a_reader_would(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a member"), BundleWriter(tmp_path / "m.hcb") as writer:
        variant = Variant(
            name="v", devices=(), values=(), inputs=(), outputs=(), partitions=(), plan="absent", summary=""
        )
        model = ModelInfo(name="m", sha256="0" * 64, opsets={}, inputs=(), outputs=())
        writer.finish(producer=Producer(heterocc="0"), model=model, variants=(variant,))
    assert list(tmp_path.iterdir()) == []


# ---- verification -------------------------------------------------------------------------------------------------


def damage_weight(path: Path, at: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(4096 + at)
        byte = file.read(1)
        file.seek(4096 + at)
        file.write(bytes([byte[0] ^ 1]))


def test_a_damaged_tensor_is_named_in_the_background_and_in_the_foreground(sample: Path) -> None:
    damage_weight(sample, 47)
    bundle = open_bundle(sample)
    handle = bundle.start_verification()
    assert handle is bundle.start_verification()
    for _ in range(2):
        with pytest.raises(BundleHashError, match="SHA-256 of weight 'w'"):
            handle.wait()
    assert handle.done
    with pytest.raises(BundleHashError, match="weight 'w'"):
        bundle.verify_weights(threads=1)


def test_a_damaged_member_is_refused_by_every_way_to_read_it(sample: Path) -> None:
    where = sample.read_bytes().index(CODE)
    damage_weight(sample, where - 4096)
    bundle = open_bundle(sample)
    for read in (bundle.member, bundle.text, bundle.array, bundle.sealed_member):
        with pytest.raises(BundleHashError, match=r"code/p0\.so"):
            read("code/p0.so")
    with pytest.raises(BundleHashError):
        bundle.verify()
    assert bundle.member("code/p1.so") == CODE + b"1"


def test_weights_of_an_unchanged_file_are_hashed_once_in_a_process(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_memo", set())  # as in a fresh process
    os.utime(sample, (1, 1))
    monkeypatch.setattr(verify, "_SETTLED_NS", -(10**18))  # as if the file had been written long ago
    first, second = open_bundle(sample), open_bundle(sample)
    mappings = {first._mapped().obj, second._mapped().obj}
    hashed: list[int] = []

    def counted(data: memoryview) -> object:
        if data.obj in mappings:  # background threads of an earlier test may still hash others
            hashed.append(data.nbytes)
        return hashlib.sha256(data)

    monkeypatch.setattr(verify, "hashlib", SimpleNamespace(sha256=counted))
    first.verify_weights()
    once = sorted(hashed)
    assert once == [0, 3, 8, 40, 48]  # the two shapes of one tensor share their bytes
    second.verify_weights()
    assert sorted(hashed) == once
    damage_weight(sample)
    os.utime(sample, (2, 2))
    changed = open_bundle(sample)
    mappings.add(changed._mapped().obj)
    with pytest.raises(BundleHashError):
        changed.verify_weights()
    assert len(hashed) > len(once)


def test_without_threads_to_be_had_verification_happens_at_once(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(verify, "_memo", set())  # as in a fresh process
    monkeypatch.setattr(verify, "_thread", SimpleNamespace(start_new_thread=no_thread))
    assert open_bundle(sample).start_verification().done
    damage_weight(sample)
    handle = open_bundle(sample).start_verification()
    assert handle.done
    with pytest.raises(BundleHashError):
        handle.wait()


def test_only_a_file_that_was_settled_when_it_was_opened_is_remembered(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_SETTLED_NS", 10**12)  # a change less than 1000 s ago counts as just now
    bundle = open_bundle(sample)
    monkeypatch.undo()
    time.sleep(0.11)
    bundle.verify_weights()
    assert not verify.is_remembered(bundle._key)
    settled = open_bundle(sample)
    settled.verify_weights()
    assert verify.is_remembered(settled._key)


def test_many_threads_may_use_one_bundle(sample: Path) -> None:
    bundle = open_bundle(sample)
    failures: list[BaseException] = []

    def use() -> None:
        try:
            bundle.verify()
            with bundle.sealed_member("code/p0.so") as sealed:
                assert Path(sealed.path).read_bytes() == CODE
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_weight_is_called_by_the_name_that_its_first_user_gives_it(tmp_path: Path) -> None:
    manifest: Manifest = write_sample(tmp_path / "m.hcb")
    names = [weight_label(manifest, i) for i in range(len(manifest.weights))]
    assert names == ["weight 'w'", "weight 'c'", "weight 'mask'", "weight 3", "weight 4", "weight 'scale'"]


# ---- files other than bundles --------------------------------------------------------------------------------------


def test_a_missing_file_and_a_name_with_a_nul_are_input_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.hcb", "a\0b"):
        with pytest.raises(FileMissingError):
            open_bundle(path)


def test_folders_pipes_and_devices_are_no_bundles(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(BundleError, match="not a bundle"):
            open_bundle(path)


def test_opening_leaves_two_descriptors_and_closing_none(sample: Path) -> None:
    def descriptors() -> int:
        links = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
        return sum(link == str(sample.resolve()) for link in links)

    bundle = open_bundle(sample)
    bundle.verify()
    assert descriptors() == 2  # those of the mapping and of the check for changes
    bundle.close()
    del bundle
    assert descriptors() == 0
