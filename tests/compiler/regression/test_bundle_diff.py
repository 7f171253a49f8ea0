"""Comparison of bundles: each kind of difference is found, named and decides the exit status."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from heterocc.artifacts.errors import BundleHashError, HeteroccError
from heterocc.artifacts.sign import sign_bundle
from heterocc.artifacts.signing.keys import create_key_pair
from heterocc.compiler.cli.main import app
from heterocc.compiler.regression.bundle_diff import diff_bundles
from heterocc.compiler.regression.differences import KINDS
from heterocc.runtime.cli import bench
from tests.artifacts.bundle_forge import contents, edited, pack, rehash, with_manifest
from tests.artifacts.bundle_sample import write_sample
from tests.runtime import standin


def diff(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["diff", *(str(a) for a in arguments)])


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal bundles."""
    for name in "ab":
        write_sample(tmp_path / f"{name}.hcb")
    return tmp_path / "a.hcb", tmp_path / "b.hcb"


def test_equal_bundles_have_no_difference_even_if_one_is_signed(pair: tuple[Path, Path], tmp_path: Path) -> None:
    sign_bundle(pair[1], create_key_pair(tmp_path / "me.key")[0])
    found = diff_bundles(*pair)
    assert found.same and not found.differences and found.failed(KINDS) == ()
    done = diff(*pair, "--fail-on", "all")
    assert done.exit_code == 0 and done.stdout == "the bundles have the same content\n"


def change(path: Path, kind: str) -> None:
    """Change a bundle in one respect."""
    edits: dict[str, Callable[[dict[str, Any]], object]] = {
        "versions": lambda m: m["producer"].update(tvm="0.28.1"),
        "model": lambda m: m["model"]["opsets"].update({"": 99}),
        "plan": lambda m: m["variants"][0]["partitions"][1].update(device=0),
        "kernels": lambda m: m["variants"][0]["partitions"][0]["kernels"].append(
            {"symbol": "new_kernel", "nodes": ["n9"], "op_types": [], "outputs": ["a"]}
        ),
        "golden": lambda m: m["golden"].update(rtol=0.5),
        "other": lambda m: m["variants"][0].update(notes=["a remark"]),
        "estimate": lambda m: m["variants"][0].update(summary="1 node: CPU 1; est. 3.0 ms"),
    }
    if kind in edits:
        pack(path, edited(path, edits[kind]))
        return
    members = contents(path)
    manifest = json.loads(members["manifest.json"])
    if kind == "code":
        members["code/p0.so"] += b"more"
    else:
        members["weights.bin"] = np.float32(3.5).tobytes() + members["weights.bin"][4:]
        for weight in manifest["weights"]:
            data = members["weights.bin"][weight["offset"] :][: weight["nbytes"]]
            weight["sha256"] = hashlib.sha256(data).hexdigest()
    rehash(manifest, members)
    pack(path, with_manifest(members, json.dumps(manifest).encode()))


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("versions", "tvm: 0.27.0 → 0.28.1"),
        ("model", "operator sets: "),
        ("plan", ": CPU → GPU"),
        ("kernels", "+new_kernel: n9 -> a"),
        ("code", "variant hetero, p0: "),
        ("weights", "1 of 12 elements differ, at most by 3.5"),
        ("golden", "rtol: "),
        ("other", "+a remark"),
    ],
)
def test_each_kind_of_difference_is_named_and_ends_with_status_1(
    kind: str, shown: str, pair: tuple[Path, Path]
) -> None:
    change(pair[1], kind)
    done = diff(*pair)
    assert done.exit_code == 1, done.output
    assert shown in done.stdout and f"differs: {kind}\n" in done.stdout
    others = ",".join(k for k in KINDS if k not in (kind, "size"))  # almost every change also changes the size
    assert diff(*pair, "--fail-on", others).exit_code == 0
    report = json.loads(diff(*pair, "--json").stdout)
    assert report["failed"] == [kind] and not report["same"] and report["differences"][kind]
    assert diff_bundles(*pair).failed() == (kind,)


def test_an_estimate_is_compared_in_seconds_and_decides_only_on_request(pair: tuple[Path, Path]) -> None:
    for path, time in zip(pair, ("2.0 ms", "900.0 us"), strict=True):
        pack(path, edited(path, lambda m, time=time: m["variants"][0].update(summary=f"1 node; est. {time}")))
    found = diff_bundles(*pair)
    assert found.estimates["hetero"] == (2e-3, pytest.approx(9e-4))
    assert found.differences["estimate"][0].text == "2 ms → 0.9 ms (-55.0%)" and "estimate" not in found.failed()
    assert diff(*pair, "--fail-on", "estimate").exit_code == 1


def test_a_variant_in_one_bundle_only_is_a_difference_of_the_plan(pair: tuple[Path, Path]) -> None:
    pack(pair[1], edited(pair[1], lambda m: m["variants"].pop()))
    found = diff_bundles(*pair)
    assert found.differences["plan"][0].text == "only in the first bundle"


def test_damage_of_what_is_compared_is_an_error(pair: tuple[Path, Path]) -> None:
    change(pair[1], "weights")
    data = pair[1].read_bytes().replace(np.float32(3.5).tobytes(), np.float32(4.5).tobytes(), 1)
    pair[1].write_bytes(data)
    with pytest.raises(BundleHashError):
        diff_bundles(*pair)


def test_wrong_arguments_are_errors(pair: tuple[Path, Path], tmp_path: Path) -> None:
    wrong = diff(*pair, "--fail-on", "plan,colour")
    assert wrong.exit_code == 2 and "'colour' is not a kind of difference" in wrong.stderr
    with pytest.raises(HeteroccError):
        diff_bundles(pair[0], tmp_path / "missing.hcb")


def test_times_are_compared_in_turns_and_a_slower_bundle_ends_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        standin.write_bundle(tmp_path / f"{name}.hcb", standin.chain(1))
    paths = [tmp_path / "a.hcb", tmp_path / "b.hcb"]
    measured = bench.interleave

    def slow(runners: Any, seconds: float, iterations: int | None) -> Any:
        first, second = measured(runners, seconds, iterations)
        assert len(first.latencies) == len(second.latencies)
        return first, bench.Timing(second.name, tuple(3 * max(first.latencies) for _ in second.latencies), second.wall)

    monkeypatch.setattr(bench, "interleave", slow)
    done = diff(*paths, "--bench", "--time", "0.01")
    assert done.exit_code == 1 and "slower than 1.1 times the first" in done.stdout and "differs: time" in done.stdout
    assert diff(*paths, "--bench", "--time", "0.01", "--fail-on", "plan").exit_code == 0
    monkeypatch.setattr(bench, "interleave", measured)
    report = json.loads(diff(*paths, "--bench", "--time", "0.01", "--slower", "1e6", "--json").stdout)
    assert report["failed"] == [] and report["time"]["ratio"] > 0 and len(report["time"]["median_ms"]) == 2
