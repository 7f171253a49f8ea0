"""Bundles whose file is overwritten, cut short, touched or replaced while they are open."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.errors import BundleChangedError, BundleError
from heterocc.artifacts.files import watch
from heterocc.artifacts.reader import open_bundle
from tests.artifacts.bundle_sample import CODE, write_sample


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "m.hcb"
    write_sample(path)
    time.sleep(0.02)  # a tick of the file system's clock, so that later changes have another time
    return path


def flip_weight(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        byte = file.read(1)
        file.seek(4096)
        file.write(bytes([byte[0] ^ 1]))


def test_an_overwritten_file_is_reported_each_time(sample: Path) -> None:
    bundle = open_bundle(sample)
    bundle.check_unchanged()
    flip_weight(sample)
    for _ in range(2):
        with pytest.raises(BundleChangedError, match="weight 'w'") as found:
            bundle.check_unchanged()
        assert found.value.where == str(sample) and "renaming" in str(found.value.hint)


def test_a_change_whose_mtime_was_set_back_is_noticed(sample: Path) -> None:
    before = sample.stat()
    bundle = open_bundle(sample)
    flip_weight(sample)
    os.utime(sample, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(BundleChangedError):
        bundle.check_unchanged()


@pytest.mark.parametrize(
    "harmless",
    [
        pytest.param(lambda p: os.utime(p, (5, 5)), id="touched"),
        pytest.param(lambda p: p.chmod(0o600), id="mode"),
        pytest.param(lambda p: p.rename(p.with_name("other.hcb")), id="renamed"),
        pytest.param(lambda p: os.link(p, p.with_name("other.hcb")), id="linked"),
        pytest.param(lambda p: p.unlink(), id="unlinked"),
        pytest.param(lambda p: p.write_bytes(p.read_bytes()), id="same bytes"),
    ],
)
def test_what_leaves_the_content_as_it_is_leaves_the_bundle_usable(
    sample: Path, harmless: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SETTLED_NS", -1)
    bundle = open_bundle(sample)
    harmless(sample)
    bundle.check_unchanged()
    assert bundle._watch is not None and not bundle._watch.differs()  # not looked at again in every run
    bundle.verify()


def test_a_bundle_that_was_replaced_by_renaming_is_not_hashed_again(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(sample)
    other = tmp_path / "other.hcb"
    shutil.copy(sample, other)
    other.rename(sample)
    monkeypatch.setattr(bundle, "_extents", lambda: pytest.fail("hashed"))
    bundle.check_unchanged()
    assert bundle._watch is not None and not bundle._watch.differs()


def test_a_closed_bundle_is_not_checked_for_changes(sample: Path) -> None:
    closed, still_open = open_bundle(sample), open_bundle(sample)
    closed.close()
    flip_weight(sample)
    closed.check_unchanged()
    with pytest.raises(BundleChangedError):
        still_open.check_unchanged()


CUT = """
import os, sys
from heterocc.artifacts.errors import BundleChangedError
from heterocc.artifacts.reader import open_bundle
bundle, verified = open_bundle(sys.argv[1]), open_bundle(sys.argv[1])
verified.verify()
os.truncate(sys.argv[1], int(sys.argv[2]))
calls = [bundle.check_unchanged, bundle.verify_weights, bundle.verify, verified.check_unchanged]
calls += [lambda i=i: bundle.weights_view(i) for i in range(2)]
for name in bundle.member_names:
    calls += [lambda n=n, r=r: r(n) for n in [name] for r in (bundle.member, bundle.text, bundle.sealed_member)]
calls += [lambda n=n: bundle.array(n) for n in bundle.member_names if n.endswith(".npy")]
for call in calls:
    try:
        call()
    except BundleChangedError as error:
        assert error.where and error.hint
    else:
        sys.exit(f"{call} took no notice")
"""


def test_a_file_cut_short_is_an_error_of_all_that_reads_it(sample: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CUT, str(sample), "100"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_copied_bundle_does_not_depend_on_its_file(sample: Path) -> None:
    with open_bundle(sample, copy=True) as bundle:
        flip_weight(sample)
        os.truncate(sample, 10)
        bundle.check_unchanged()
        bundle.verify()
        assert bundle.member("code/p0.so") == CODE
        assert bundle.weights_view(0)[2, 3] == 11


def test_a_copied_bundle_that_was_damaged_before_is_still_refused(sample: Path) -> None:
    open_bundle(sample).verify()  # which is remembered
    flip_weight(sample)
    with pytest.raises(BundleError, match="weight 'w'"):
        open_bundle(sample, copy=True).verify()


def descriptors(path: Path) -> int:
    return sum(os.path.realpath(link) == str(path.resolve()) for link in Path("/proc/self/fd").iterdir())


def test_a_copied_bundle_keeps_no_descriptor(sample: Path) -> None:
    bundle: Bundle = open_bundle(sample, copy=True)
    assert descriptors(sample) == 0
    bundle.close()
