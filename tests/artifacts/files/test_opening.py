from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from heterocc.artifacts.files.opening import open_file


def test_a_pipe_that_nobody_writes_is_an_error_and_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="nobody writes to it"):
        open_file(tmp_path / "pipe")


@pytest.mark.parametrize("kind", ["folder", "device", "socket", "loop"])
def test_what_holds_no_bytes_is_an_error(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    place = Path(kind)
    if kind == "folder":
        place.mkdir()
    elif kind == "device":
        place = Path("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(place))
    else:
        place.symlink_to(place)
    with pytest.raises(OSError, match=r"."):
        open_file(place)


def test_a_pipe_with_a_writer_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"text")
    os.close(writing)
    with open_file(f"/dev/fd/{reading}") as file:
        assert file.read() == b"text" and file.seek(1) == 1 and file.read() == b"ext"
    os.close(reading)
