from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from scripts.errors_page import error_classes, errors_page, section_of

from heterocc.artifacts import errors
from heterocc.runtime.serve.errors import ServiceError

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
RANGES = {
    errors.InputError: "HC1",
    errors.UnsupportedOpError: "HC2",
    errors.BundleError: "HC3",
    errors.DeviceError: "HC4",
    ServiceError: "HC5",
    errors.HeteroccError: "HC9",
}


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == errors_page()


def test_the_command_prints_and_writes_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.errors_page"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == errors_page()
    subprocess.run([*command, str(tmp_path / "errors.md")], check=True)
    assert (tmp_path / "errors.md").read_text(encoding="utf-8") == errors_page()


def test_every_code_is_unique_and_on_the_page_once() -> None:
    codes = [error.code for error in error_classes()]
    assert len(codes) > 30
    assert len(set(codes)) == len(codes)
    for code in codes:
        assert errors_page().count(f"| {code} |") == 1


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_an_error_has_its_own_code_in_its_base_class_range_and_a_docstring(error: type[errors.HeteroccError]) -> None:
    assert "code" in vars(error)
    assert error.code.startswith(RANGES[section_of(error)])
    assert len(error.code) == 5
    assert error.__doc__ and error.__doc__.endswith(".")
    assert "|" not in error.__doc__
    assert error.exit_code in (1, 2)


def test_an_error_prints_its_code_place_and_hint() -> None:
    error = errors.BundleHashError("bytes differ", where="m.hcb", hint="copy it again")
    assert str(error) == "error[HC303]: bytes differ\n  --> m.hcb\n  hint: copy it again"
    assert error.to_json() == {"code": "HC303", "message": "bytes differ", "where": "m.hcb", "hint": "copy it again"}
