"""The notes of a session that a terminal shows."""

import pytest

from heterocc.compiler.cli.shared import SCREEN

USUAL = "the OpenCL code of 'p0' comes from source"
AMISS = f"{USUAL}: the driver refused 3 binaries; compile the bundle again with this driver"


def test_the_origin_of_code_is_shown_only_if_something_is_amiss(capsys: pytest.CaptureFixture[str]) -> None:
    SCREEN.notes(["runs on GPU,CPU", USUAL], None)
    assert capsys.readouterr().err == ""
    SCREEN.notes(["runs on GPU,CPU", AMISS], None)
    shown = capsys.readouterr().err
    assert "note: runs on GPU,CPU" in shown and "compile the bundle again" in shown
