from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import OutputFileError
from heterocc.artifacts.files import atomic
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.writer import BundleWriter
from tests.artifacts.bundle_sample import write_sample

ROOT = os.geteuid() == 0

WRITE_FOR_EVER = """
import pathlib, sys
from tests.artifacts.bundle_sample import write_sample
print("ready", flush=True)
while True:
    write_sample(pathlib.Path(sys.argv[1]), code=b"code" * 500_000)
"""


def stale(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.name.startswith(".heterocc-") and p.name.endswith(".partial")]


def test_a_writer_killed_at_any_moment_leaves_the_old_bundle_or_the_new_one(tmp_path: Path) -> None:
    target = tmp_path / "m.hcb"
    write_sample(target, code=b"old")
    old = target.read_bytes()
    write_sample(tmp_path / "new.hcb", code=b"code" * 500_000)
    new = (tmp_path / "new.hcb").read_bytes()
    rng = random.Random(20)
    found, left_behind = set(), 0
    for _ in range(20):
        target.write_bytes(old)
        command = [sys.executable, "-c", WRITE_FOR_EVER, str(target)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
        content = target.read_bytes()
        assert content in (old, new)
        found.add(content)
        left_behind += len(stale(tmp_path))
        assert {p.name for p in tmp_path.iterdir()} - {p.name for p in stale(tmp_path)} == {"m.hcb", "new.hcb"}
    assert left_behind  # some were killed while they wrote, so that the next lines mean something
    write_sample(target)
    assert stale(tmp_path) == []
    open_bundle(target).verify()


def test_a_writer_killed_before_there_was_a_bundle_leaves_none(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np; from heterocc.artifacts.writer import BundleWriter\n"
        "w = BundleWriter(sys.argv[1]); w.add_weight(np.ones(100000)); print('ready', flush=True); sys.stdin.read()"
    )
    target = tmp_path / "m.hcb"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert len(stale(tmp_path)) == 1
        write_sample(target)
        assert len(stale(tmp_path)) == 1  # that of a living writer stays
        process.kill()
        process.wait()
        target.unlink()
        assert len(stale(tmp_path)) == 1
        write_sample(tmp_path / "other.hcb")
        assert len(stale(tmp_path)) == 1  # another target's writer leaves it alone
        write_sample(target)
    assert stale(tmp_path) == []


def test_two_writers_of_one_path_do_not_disturb_each_other(tmp_path: Path) -> None:
    target = tmp_path / "m.hcb"
    first = BundleWriter(target)
    with first as writer:
        writer.add_weight(np.ones(10))
        write_sample(target)
        before = target.read_bytes()
        writer._finished = True  # leave without a bundle
    assert target.read_bytes() == before
    assert stale(tmp_path) == []


def test_an_exception_in_the_block_leaves_the_old_bundle_alone(tmp_path: Path) -> None:
    target = tmp_path / "m.hcb"
    write_sample(target)
    before = target.read_bytes()
    with pytest.raises(KeyboardInterrupt), BundleWriter(target) as writer:
        writer.add_weight(np.ones(10))
        raise KeyboardInterrupt
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.hcb"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not ROOT or shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("where", ["weight", "member"])
def test_a_full_disk_is_an_output_error_and_leaves_nothing(tiny_disk: Path, where: str) -> None:
    write_sample(tiny_disk / "m.hcb")
    before = (tiny_disk / "m.hcb").read_bytes()
    with pytest.raises(OutputFileError, match="No space left") as caught:
        if where == "member":
            write_sample(tiny_disk / "m.hcb", code=bytes(2**20))
        else:
            with BundleWriter(tiny_disk / "m.hcb") as writer:
                writer.add_weight(np.zeros(2**18))
    assert caught.value.code == "HC111" and caught.value.hint is not None and "space" in caught.value.hint
    assert [p.name for p in tiny_disk.iterdir()] == ["m.hcb"]
    assert (tiny_disk / "m.hcb").read_bytes() == before


def test_a_file_size_limit_is_an_output_error_and_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OutputFileError, match="too large"):
            write_sample(tmp_path / "m.hcb", code=bytes(2**20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_an_output_error_that_says_so(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "m.hcb", Path(__file__) / "m.hcb"):
        with pytest.raises(OutputFileError) as caught:
            BundleWriter(path)
        assert caught.value.hint == "create the directory first"


def test_a_folder_a_device_and_an_impossible_name_are_output_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null"), Path("a\0b"), tmp_path / ("n" * 300)):
        with pytest.raises(OutputFileError):
            BundleWriter(path)
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(ROOT, reason="root may write anywhere")
def test_a_folder_without_permission_is_an_output_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputFileError, match="Permission"):
        BundleWriter(tmp_path / "m.hcb")


@pytest.mark.skipif(not ROOT, reason="root drops its rights to see what others see")
def test_a_folder_of_someone_else_is_an_output_error(tmp_path: Path) -> None:
    code = (
        "import os, sys; from heterocc.artifacts.errors import OutputFileError\n"
        "from heterocc.artifacts.writer import BundleWriter\n"
        "os.setuid(65534)\n"
        "try: BundleWriter(sys.argv[1])\n"
        "except OutputFileError as error: print(error)"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        run = subprocess.run(
            [sys.executable, "-c", code, f"{folder}/m.hcb"], capture_output=True, text=True, check=True
        )
    assert "HC111" in run.stdout and "may write" in run.stdout


def test_a_link_is_followed_and_the_umask_kept(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.hcb").symlink_to(tmp_path / "real" / "m.hcb")
    old = os.umask(0o027)
    try:
        write_sample(tmp_path / "link.hcb")
    finally:
        os.umask(old)
    assert (tmp_path / "link.hcb").is_symlink()
    assert (tmp_path / "real" / "m.hcb").stat().st_mode & 0o777 == 0o640


def test_a_temporary_file_taken_away_before_its_lock_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def too_late(fd: int) -> bool:
        if not taken:
            taken.extend(stale(tmp_path))
            taken[0].unlink()
        return True

    monkeypatch.setattr(atomic, "try_lock", too_late)
    write_sample(tmp_path / "m.hcb")
    assert len(taken) == 1
    open_bundle(tmp_path / "m.hcb").verify()
