"""Weights that are made in other layouts when a bundle is loaded."""

from __future__ import annotations

import os
import platform
import threading
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import BundleHashError
from heterocc.artifacts.manifest import Manifest
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.weights import verify
from heterocc.compiler import compile_model
from heterocc.runtime import Session, load
from heterocc.runtime.execute.arranging import Arranging
from heterocc.runtime.native import cpu_api, opencl_unavailable_reason, vulkan_unavailable_reason
from tests.compiler.test_cpu_targets import wide_net

TARGETS = ["native", "x86-64" if platform.machine() == "x86_64" else "armv8-a"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two variants that read the same weights in different layouts."""
    folder = tmp_path_factory.mktemp("arranging")
    compile_model(wide_net(folder / "m.onnx"), folder / "m.hcb", devices="CPU", cpu_targets=TARGETS)
    with open_bundle(folder / "m.hcb") as opened:
        assert sum(len(p.layouts) for p in opened.manifest.variants[0].partitions)
    return folder / "m.hcb"


def vectors(bundle: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    with open_bundle(bundle) as opened:
        golden = opened.manifest.golden
        assert golden is not None
        feed = {name: opened.array(member).copy() for name, member in golden.inputs.items()}
        return feed, {name: opened.array(member).copy() for name, member in golden.outputs.items()}


def check(session: Session, bundle: Path) -> None:
    feed, expected = vectors(bundle)
    for name, result in session.run(feed).items():
        np.testing.assert_allclose(result, expected[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("variant", [0, 1])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_variant_makes_its_own_layouts(bundle: Path, variant: int, threads: int) -> None:
    with open_bundle(bundle) as opened:
        name = opened.manifest.variants[variant].name
    for moment in ("background", "load"):
        verify._memo.clear()
        with load(bundle, name, threads=threads, verify=moment) as session:  # type: ignore[arg-type]
            check(session, bundle)
            check(session, bundle)


def test_a_session_without_the_background_thread_makes_them_at_its_first_run(bundle: Path) -> None:
    with Session(open_bundle(bundle)) as session:
        check(session, bundle)


def test_without_the_plug_in_numpy_makes_them(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_api, "_library", lambda: None)
    with load(bundle) as session:
        check(session, bundle)


def test_many_first_runs_at_once_see_complete_weights(bundle: Path) -> None:
    with Session(open_bundle(bundle)) as session:
        failed: list[BaseException] = []

        def call() -> None:
            try:
                check(session, bundle)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []


def test_nothing_is_made_from_damaged_weights(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(bundle.read_bytes())
    data[4096 + 100] ^= 1
    (tmp_path / "m.hcb").write_bytes(data)
    made: list[object] = []
    monkeypatch.setattr(Arranging, "_make", lambda self, task: made.append(task))
    with load(tmp_path / "m.hcb") as session:
        for _ in range(2):
            with pytest.raises(BundleHashError, match="weight"):
                session.run(vectors(bundle)[0])
    assert made == []


def test_a_forked_child_makes_what_its_parent_had_not_made(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    make = Arranging._make_all

    def late(self: Arranging) -> None:
        hold.wait()
        make(self)

    parent = os.getpid()
    monkeypatch.setattr(Arranging, "_make_all", lambda self: late(self) if os.getpid() == parent else make(self))
    with load(bundle, threads=1) as session:
        child = os.fork()
        if child == 0:
            try:
                check(session, bundle)
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        hold.set()
        check(session, bundle)


def layouts_of(manifest: Manifest, variant: str) -> int:
    return sum(len(p.layouts) for v in manifest.variants if v.name == variant for p in v.partitions)


@pytest.mark.parametrize(
    ("device", "reason"), [("OPENCL", opencl_unavailable_reason()), ("VULKAN", vulkan_unavailable_reason())]
)
def test_a_gpu_and_the_cpu_share_plain_weights(device: str, reason: str | None, tmp_path: Path) -> None:
    if reason is not None:
        pytest.skip(reason)
    model, bundle = wide_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    compile_model(model, bundle, devices=f"{device},CPU")
    with open_bundle(bundle) as opened:
        manifest = opened.manifest
        stored = sum({(w.offset, w.nbytes): w.nbytes for w in manifest.weights}.values())
        assert layouts_of(manifest, "cpu") and stored < 1.1 * 4 * (32 * 32 * 9 + 32 * 64)
    for devices in (device, "CPU"):
        with load(bundle, devices) as session:
            check(session, bundle)


def test_the_same_input_gives_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    compile_model(wide_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU", cpu_targets=TARGETS)
    assert (tmp_path / "m.hcb").read_bytes() == bundle.read_bytes()
