"""Temporary folders: what keeps code from being written to them is an error before LLVM meets it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from heterocc.artifacts.errors import OutputFileError
from heterocc.compiler.files.scratch import LEAST_ROOM, scratch_folder
from tests.fresh_process import fresh


def test_a_disk_that_is_nearly_full_is_refused_before_code_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with scratch_folder("code") as folder:
        assert folder.is_dir()
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=LEAST_ROOM // 4096 - 1, f_frsize=4096))
    with pytest.raises(OutputFileError, match="No space left on device"), scratch_folder("code"):
        pass


def test_a_limit_on_the_size_of_files_is_an_error_and_ends_no_process() -> None:
    program = """
import resource
from heterocc.artifacts.errors import OutputFileError
from heterocc.compiler.files.scratch import scratch_folder
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    with scratch_folder("code"):
        pass
except OutputFileError as error:
    print(error.message)
"""
    assert "the limit on the size of files is 4096 bytes" in fresh(program)
