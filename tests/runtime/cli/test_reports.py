from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heterocc.artifacts.errors import BundleError
from heterocc.artifacts.files import sealed
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.runtime import load
from heterocc.runtime.cli.reports import check_bundle, print_bundle, print_check
from tests.compiler.small import conv_net

SENTENCE = "no result of this bundle was compared with ONNX Runtime when it was compiled"


@pytest.fixture(scope="module")
def unchecked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of code for the CPU."""
    folder = tmp_path_factory.mktemp("unchecked")
    compile_model(conv_net(folder / "m.onnx"), folder / "m.hcb", devices=["CPU"], check=False)
    return folder / "m.hcb"


@pytest.mark.parametrize("checked", [True, False])
def test_a_bundle_of_which_nothing_was_checked_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], unchecked: Path, checked: bool
) -> None:
    bundle = tmp_path / "m.hcb" if checked else unchecked
    if checked:
        compile_model(conv_net(tmp_path / "m.onnx"), bundle, devices=["CPU"])
    report = check_bundle(bundle)
    assert report["checked"] is checked
    print_check(report)
    with open_bundle(bundle) as opened:
        print_bundle(opened, plan=False, members=False, kernels=False)
    assert capsys.readouterr().out.count(SENTENCE) == (0 if checked else 2)


@contextmanager
def _forbidden(what: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that may not load code, as in a container with a filter or under a limit."""

    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with monkeypatch.context() as patch:
        if what == "memfd_create":
            patch.setattr(os, "memfd_create", refuse)
        elif what == "/proc":
            patch.setattr(sealed, "_FILES", "/nowhere/fd")
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("what", ["memfd_create", "/proc", "ulimit -f"])
def test_a_bundle_whose_code_may_not_be_loaded_cannot_run_here(
    unchecked: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    assert check_bundle(unchecked)["runs"]
    with _forbidden(what, monkeypatch):
        report = check_bundle(unchecked)
        with pytest.raises(BundleError) as error:
            load(unchecked)
    assert report["intact"]
    assert not report["runs"]
    (reason,) = report["variants"][0]["reasons"]
    assert what in reason
    assert error.value.message in reason
