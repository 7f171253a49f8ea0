from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.dtypes import STORAGE, UNSTORED
from heterocc.artifacts.errors import BundleError, BundleManifestError
from heterocc.artifacts.manifest import Manifest, manifest_schema
from heterocc.artifacts.npy import parse_npy
from heterocc.artifacts.reader import open_bundle
from tests.artifacts.bundle_forge import contents, edited, pack, rehash, with_manifest
from tests.artifacts.bundle_sample import write_sample

ROOT = Path(__file__).parents[2]
Tree = Any


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    write_sample(tmp_path / "m.hcb")
    return tmp_path / "m.hcb"


def refused(path: Path, members: dict[str, bytes], match: str) -> None:
    pack(path, members)
    with pytest.raises(BundleManifestError, match=match) as caught:
        open_bundle(path)
    assert caught.value.where == str(path) and caught.value.hint


def test_the_schema_file_is_that_of_the_code() -> None:
    text = (ROOT / "artifacts" / "manifest.schema.json").read_text(encoding="utf-8")
    assert text == manifest_schema(), "write it anew: python -m heterocc.artifacts.manifest > manifest.schema.json"


def test_the_specification_names_every_dtype_and_limit() -> None:
    text = (ROOT / "artifacts" / "FORMAT.md").read_text(encoding="utf-8")
    for dtype in (*STORAGE, *UNSTORED):
        assert dtype in text
    for limit in ("32768", "16 MiB", "2^20", "1024", "2^48", "2^62", "2^58"):
        assert limit in text


def put(*keys: str | int, to: object) -> Callable[[Tree], None]:
    """An edit that sets one place of the manifest; the last key of a list may be its length, to append."""

    def edit(manifest: Tree) -> None:
        place = manifest
        for key in keys[:-1]:
            place = place[key]
        if isinstance(place, list) and keys[-1] == len(place):
            place.append(to)
        else:
            place[keys[-1]] = to

    return edit


V = ("variants", 0)
P = (*V, "partitions")


def too_large_together(manifest: Tree) -> None:
    """Unread values of 2^59 bytes each; more than 2^62 together."""
    manifest["variants"][0]["values"] += [
        {"name": f"huge{i}", "dtype": "float64", "shape": [2**28, 2**28]} for i in range(9)
    ]


def complex_weight(manifest: Tree) -> None:
    manifest["weights"][5]["dtype"] = "complex64"  # of float64's size
    manifest["variants"][0]["partitions"][0]["params"] = [5]


REFERENCES = {
    "values past 2^62 together": (too_large_together, "bytes in total, more than"),
    "member not in the file": (put("members", 1, "name", to="code/p9.so"), "'code/p9.so' is not in the file"),
    "member twice": (put("members", 2, "name", to="code/p0.so"), "appears twice"),
    "member unsafe": (put("members", 1, "name", to="a/../b"), "is not allowed"),
    "member pattern": (put("members", 1, "name", to="/etc/passwd"), "malformed at"),
    "member reserved": (put("members", 1, "name", to="manifest.json"), "is not allowed"),
    "member size": (put("members", 1, "size", to=5), "the manifest says 5"),
    "member size huge": (put("members", 1, "size", to=10**30), "malformed at"),
    "member size negative": (put("members", 1, "size", to=-1), "malformed at"),
    "member without hash": (put("members", 1, "sha256", to=None), "must have a SHA-256"),
    "member with bad hash": (put("members", 1, "sha256", to="Z" * 64), "malformed at"),
    "weights with hash": (put("members", 0, "sha256", to="0" * 64), "must have a SHA-256"),
    "weights elsewhere": (put("weights_member", to="code/p0.so"), "must have a SHA-256"),
    "weights absent": (put("weights_member", to="nothing"), "must have a SHA-256"),
    "weight dtype": (put("weights", 0, "dtype", to="object"), "unknown dtype 'object'"),
    "weight nbytes": (put("weights", 0, "nbytes", to=44), "has 44 bytes, but its dtype and shape require 48"),
    "weight shape": (put("weights", 0, "shape", to=[3, 5]), "require 60"),
    "weight shape negative": (put("weights", 0, "shape", to=[-3, -4]), "malformed at"),
    "weight dim huge": (put("weights", 0, "shape", to=[2**60]), "malformed at"),
    "weight rank": (put("weights", 0, "shape", to=[1] * 33), "malformed at"),
    "weight dim not a number": (put("weights", 0, "shape", to=["3", "4"]), "malformed at"),
    "weight empty but huge": (put("weights", 3, "shape", to=[0, 2**48, 2**48]), "too large"),
    "weight unaligned": (put("weights", 0, "offset", to=8), "64-byte boundary"),
    "weight outside": (put("weights", 5, "offset", to=6400), "outside the weight file"),
    "weight far outside": (put("weights", 5, "offset", to=2**62), "outside the weight file"),
    "weight overlap": (put("weights", 5, "offset", to=0), "overlap at offset 0"),
    "weight same place, other hash": (put("weights", 4, "sha256", to="0" * 64), "overlap at offset 0"),
    "no variants": (put("variants", to=[]), "malformed at"),
    "variant twice": (put("variants", 1, "name", to="hetero"), "'hetero' appears twice"),
    "device twice": (put(*V, "devices", 1, "name", to="GPU"), "'GPU' appears twice"),
    "value twice": (put(*V, "values", 1, "name", to="x"), "'x' appears twice"),
    "partition twice": (put(*P, 1, "name", to="p0"), "'p0' appears twice"),
    "value dtype in the other byte order": (put(*V, "values", 4, "dtype", to=">i8"), "unknown dtype '>i8'"),
    "value dtype that numpy would parse": (put(*V, "values", 4, "dtype", to=","), "unknown dtype ','"),
    "value dtype that is half a tuple": (put(*V, "values", 4, "dtype", to="(2,"), "unknown dtype"),
    "value dtype of this machine": (put(*V, "values", 4, "dtype", to="longdouble"), "unknown dtype 'longdouble'"),
    "value dtype nested too deeply": (put(*V, "values", 4, "dtype", to="seq(" * 9 + ")" * 9), "unknown dtype"),
    "value dtype unbalanced": (put(*V, "values", 4, "dtype", to="seq(tensor(float)"), "unknown dtype"),
    "model dtype": (put("model", "inputs", 0, "dtype", to="<f4"), "model's inputs has unknown dtype '<f4'"),
    "compiled complex64": (put(*V, "values", 1, "dtype", to="complex64"), "'a' is complex64, which no device"),
    "compiled bfloat16": (put(*V, "values", 1, "dtype", to="bfloat16"), "'a' is bfloat16, which no device"),
    "compiled weight": (complex_weight, "weight 5 is complex64, which no device"),
    "compiled dynamic": (put(*V, "values", 1, "shape", to=[None, 3]), "'a' has no static shape"),
    "threads of another script": (put(*V, "devices", 1, "properties", to={"threads": "\u00b2"}), "not a number from 1"),
    "threads of 5000 digits": (put(*V, "devices", 1, "properties", to={"threads": "9" * 5000}), "not a number from 1"),
    "threads past 2^31": (put(*V, "devices", 2, "properties", to={"threads": "4294967297"}), "not a number from 1"),
    "threads that no machine has": (put(*V, "devices", 2, "properties", to={"threads": "100000"}), "from 1 to 1024"),
    "no threads": (put(*V, "devices", 1, "properties", to={"threads": "0"}), "not a number from 1"),
    "opset of 100 digits": (put("model", "opsets", to={"": 10**100}), "malformed at"),
    "value huge": (put(*V, "values", 1, "shape", to=[2**48, 2**48]), "too large"),
    "input index": (put(*V, "inputs", to=[99]), "index 99 of 5"),
    "output index": (put(*V, "outputs", to=[5]), "index 5 of 5"),
    "negative index": (put(*V, "outputs", to=[-1]), "malformed at"),
    "too few inputs": (put(*V, "inputs", to=[]), "0, but the model has 1"),
    "input twice": (put("model", "inputs", 1, to={"name": "x", "dtype": "float32", "shape": []}), "appears twice"),
    "input dtype": (put("model", "inputs", 0, "dtype", to="int8"), "differs in dtype or shape"),
    "output shape": (put("model", "outputs", 0, "shape", to=[1, 4]), "differs in dtype or shape"),
    "output rank": (put("model", "outputs", 0, "shape", to=[1]), "differs in dtype or shape"),
    "output never written": (put(*P, 2, "outputs", to=[]), "'y' of variant 'hetero' is never written"),
    "partition device": (put(*P, 0, "device", to=3), "index 3 of 3"),
    "partition value": (put(*P, 0, "inputs", to=[7]), "index 7 of 5"),
    "partition param": (put(*P, 0, "params", to=[6]), "index 6 of 6"),
    "partition code": (put(*P, 0, "code", to="code/none"), "is not a member: 'code/none'"),
    "partition binaries": (put(*P, 0, "binaries", to="code/none"), "binaries of .* not a member: 'code/none'"),
    "partition binaries are weights": (put(*P, 0, "binaries", to="weights.bin"), "binaries of .* not a member"),
    "partition code is weights": (put(*P, 0, "code", to="weights.bin"), "is not a member"),
    "partition kind": (put(*P, 0, "kind", to="onnx"), "on a device of back end 'opencl'"),
    "partition kind unknown": (put(*P, 0, "kind", to="shell"), "malformed at"),
    "onnx without names": (put(*P, 2, "param_names", to=[]), "2 params but 0 names"),
    "tvm with a wrong number of names": (put(*P, 0, "param_names", to=["a", "b"]), "1 params but 2 names"),
    "reads what comes later": (put(*P, 0, "inputs", to=[2]), "reads 'b' before it is written"),
    "reads itself": (put(*P, 0, "inputs", to=[1]), "reads 'a' before it is written"),
    "writes twice": (put(*P, 1, "outputs", to=[1]), "'a' is written twice"),
    "writes an input": (put(*P, 1, "outputs", to=[0]), "'x' is written twice"),
    "plan absent": (put(*V, "plan", to="plan/none"), "is not a member"),
    "constant key": (put(*V, "constants", to={"04": 1}), "'04' is not an index"),
    "constant key text": (put(*V, "constants", to={"x": 1}), "'x' is not an index"),
    "constant key digit of another script": (put(*V, "constants", to={"٤": 1}), "is not an index"),
    "constant key huge": (put(*V, "constants", to={"9" * 5000: 1}), "is not an index"),
    "constant value": (put(*V, "constants", to={"9": 1}), "index 9 of 5"),
    "constant weight": (put(*V, "constants", to={"4": 9}), "index 9 of 6"),
    "constant dtype": (put(*V, "constants", to={"4": 0}), "differs in dtype or shape from weight 0"),
    "constant is an input": (put(*V, "constants", to={"4": 1, "0": 0}), "differs|written twice"),
    "golden input": (put("golden", "inputs", to={}), "golden inputs differ"),
    "golden output": (put("golden", "outputs", "z", to="golden/in0.npy"), "golden outputs differ"),
    "golden member": (put("golden", "inputs", "x", to="golden/none.npy"), "golden member 'golden/none.npy'"),
    "default of no input": (
        put("model", "defaults", to={"z": "golden/in0.npy"}),
        "the default of 'z' is not for an input of the model",
    ),
    "default member": (put("model", "defaults", to={"x": "golden/none.npy"}), "default member 'golden/none.npy'"),
    "golden tolerance": (put("golden", "rtol", to=-1.0), "malformed at"),
    "wrong type": (put("model", to=[]), "malformed at 'model'"),
    "number for text": (put("model", "name", to=1), "malformed at 'model.name'"),
    "text for number": (put("members", 0, "size", to="1"), "malformed at"),
    "bool for number": (put("members", 0, "size", to=True), "malformed at"),
    "lone surrogate": (put("model", "name", to="\ud800"), "malformed"),
    "other format": (put("format", to="other"), "format is not"),
    "version text": (put("version", to="1.0"), "no valid version"),
    "version bool": (put("version", to={"major": True, "minor": 0}), "no valid version"),
    "version negative": (put("version", to={"major": -1, "minor": 0}), "no valid version"),
    "version float": (put("version", to={"major": 1.0, "minor": 0}), "no valid version"),
    "version minor huge": (put("version", to={"major": 1, "minor": 2**40}), "malformed at 'version.minor'"),
}


@pytest.mark.parametrize("case", REFERENCES)
def test_a_manifest_is_refused_for(case: str, sample: Path, tmp_path: Path) -> None:
    edit, match = REFERENCES[case]
    refused(tmp_path / "x.hcb", edited(sample, edit), match)


def required(tree: Tree, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in the manifest that holds a key."""
    found: list[tuple[str | int, ...]] = []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        found += [(*path, key), *required(value, (*path, key))]
    return found


def test_any_field_removed_or_of_another_type_is_refused_or_harmless(sample: Path, tmp_path: Path) -> None:
    places = required(json.loads(contents(sample)["manifest.json"]))
    assert len(places) > 200
    refusals = 0
    for place in places:
        for value in (None, [], {}, "", -1, 2**70, 1e400, "\x1b[31m", [[[]]]):

            def edit(manifest: Tree, place: tuple[str | int, ...] = place, value: object = value) -> None:
                put(*place, to=value)(manifest)

            text = edited(sample, edit)["manifest.json"]
            try:
                check(text, contents_sizes(sample))
            except BundleError:
                refusals += 1
    assert refusals > 5 * len(places)


_sizes: dict[Path, dict[str, int]] = {}


def contents_sizes(path: Path) -> dict[str, int]:
    if path not in _sizes:
        _sizes[path] = {name: len(data) for name, data in contents(path).items()}
    return _sizes[path]


def check(text: bytes, sizes: dict[str, int]) -> Manifest:
    from heterocc.artifacts.validate import check_manifest, parse_manifest, read_version

    read_version(text)
    manifest = parse_manifest(text)
    check_manifest(manifest, sizes)
    return manifest


HEAD = b'{"format":"heterocc-bundle","version":{"major":1,"minor":0},'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"null", "format is not"),
        (b"[1]", "format is not"),
        (b"{}", "format is not"),
        (HEAD[:-1], "not JSON"),
        (HEAD[:-1] + b"} x", "not JSON"),
        (HEAD + b'"a":NaN}', "NaN is not JSON"),
        (HEAD + b'"a":-Infinity}', "-Infinity is not JSON"),
        (HEAD + b'"a":1,"a":2}', "a key appears twice"),
        (HEAD + b'"a":{"b":{"c":1,"c":1}}}', "a key appears twice"),
        (HEAD + b'"a":' + b"9" * 100_000 + b"}", "not JSON"),
        (HEAD + b'"a":' + b"[" * 1_000_000, "nested too deeply|not JSON"),
        (HEAD + b'"a":' + b"[" * 900 + b"]" * 900 + b"}", "malformed|nested"),
        (HEAD + b'"a":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "nested too deeply"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b"[" * 10_000_000, "more than 1048576 fields"),
        (HEAD + b'"a":"\x01"}', "not JSON"),
    ],
    ids=range(19),
)
def test_json_that_is_no_manifest_is_refused(text: bytes, match: str, sample: Path, tmp_path: Path) -> None:
    refused(tmp_path / "x.hcb", with_manifest(contents(sample), text), match)


def test_no_memory_is_taken_for_what_a_manifest_only_claims(sample: Path, tmp_path: Path) -> None:
    pack(tmp_path / "x.hcb", edited(sample, put("weights", 0, "shape", to=[2**20, 2**20])))
    pack(tmp_path / "y.hcb", edited(sample, put("weights", 3, "shape", to=[0, 2**40])))
    tracemalloc.start()
    try:
        with pytest.raises(BundleError):
            open_bundle(tmp_path / "x.hcb")
        assert open_bundle(tmp_path / "y.hcb").weights_view(3).shape == (0, 2**40)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


# ---- .npy members -------------------------------------------------------------------------------------------------


def npy(descr: str = "<f4", order: str = "False", shape: str = "(2,)", body: bytes = bytes(8)) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


@pytest.mark.parametrize(
    "array",
    [
        *[np.arange(6).astype(d).reshape(2, 3) for d in ("b1", "i1", "<i8", "<u2", "<f2", "<f8", "<c8")],
        np.array(2.5),
        np.zeros((3, 0, 2)),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(["ab", "c"]),
        np.array([b"ab", b"c"]),
        np.zeros((1,) * 32),
    ],
    ids=lambda a: f"{a.dtype.str}{list(a.shape)}",
)
def test_an_npy_member_is_read_as_numpy_writes_it(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    found = parse_npy(memoryview((tmp_path / "a.npy").read_bytes()), "a")
    np.testing.assert_array_equal(found, array, strict=True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x93NUMPY\x02\x00" + npy()[8:],
        npy("|O", body=bytes(16)),
        npy("<f4,<f4"),
        npy("<M8[s]", body=bytes(16)),
        npy("<U0", shape="(1099511627776,)", body=b""),
        npy("<V999999999"),
        npy("<U999999999"),
        npy(">f4"),
        npy("<i\u00b2"),
        npy(order="1"),
        npy(shape="(3,)"),
        npy(shape="(-2,)"),
        npy(shape="(2"),
        npy(shape=f"({'1, ' * 40})"),
        npy(shape="(1099511627776, 1099511627776)"),
        npy(shape="(0, 1099511627776, 1099511627776)", body=b""),
        npy(shape="(" + "9" * 400 + ",)"),
        npy(shape="(__import__('os').getpid(),)"),
        npy() + b"x",
        npy()[:-1],
    ],
    ids=range(23),
)
def test_a_malformed_npy_member_is_a_bundle_error(data: bytes, sample: Path, tmp_path: Path) -> None:
    members = contents(sample)
    members["golden/in0.npy"] = data
    manifest = json.loads(members["manifest.json"])
    rehash(manifest, members)
    pack(tmp_path / "x.hcb", with_manifest(members, json.dumps(manifest).encode()))
    with pytest.raises(BundleError, match=r"golden/in0\.npy"):
        open_bundle(tmp_path / "x.hcb").array("golden/in0.npy")


def test_a_plan_that_is_no_text_is_a_bundle_error(sample: Path, tmp_path: Path) -> None:
    members = {**contents(sample), "plan/cpu.plan": b"\xff"}
    manifest = json.loads(members["manifest.json"])
    rehash(manifest, members)
    pack(tmp_path / "x.hcb", with_manifest(members, json.dumps(manifest).encode()))
    with pytest.raises(BundleError, match="not UTF-8 text"):
        open_bundle(tmp_path / "x.hcb").text("plan/cpu.plan")


def test_the_weight_file_and_unknown_names_are_no_members(sample: Path) -> None:
    bundle = open_bundle(sample)
    for name in ("weights.bin", "manifest.json", "nothing", "../etc/passwd"):
        with pytest.raises(BundleError, match="has no member"):
            bundle.member(name)
    assert math.prod(bundle.weights_view(0).shape) == 12
