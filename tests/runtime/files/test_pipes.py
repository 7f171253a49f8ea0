"""Inputs that are read from pipes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import FileMissingError
from heterocc.runtime.feeds import TensorInfo
from heterocc.runtime.files.inputs import read_files


@pytest.mark.parametrize("suffix", ["npz", "npy", "bin"])
def test_a_pipe_that_nobody_writes_to_is_named_as_such(tmp_path: Path, suffix: str) -> None:
    pipe = tmp_path / f"pipe.{suffix}"
    os.mkfifo(pipe)
    with pytest.raises(FileMissingError, match="it is a pipe, and nobody writes to it"):
        read_files({"x": TensorInfo("x", "float32", (4,))}, [f"x={pipe}" if suffix != "npz" else str(pipe)])


def test_an_npz_is_read_from_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.npz")
    np.savez(tmp_path / "file.npz", x=np.ones(4, np.float32))
    both = os.open(pipe, os.O_RDWR)  # so that the data waits in the pipe
    os.write(both, (tmp_path / "file.npz").read_bytes())
    threading.Timer(0.1, os.close, [both]).start()
    assert read_files({"x": TensorInfo("x", "float32", (4,))}, [str(pipe)])["x"].sum() == 4
