"""The version, and two releases in one environment."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from heterocc.artifacts import version
from heterocc.artifacts.errors import NativePluginError


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert version.__version__ == project["version"]


@pytest.mark.parametrize(("runtime", "fails"), [(None, False), ("0.2.0", False), ("0.1.0", True)])
def test_two_releases_that_share_files_are_an_error_that_says_what_to_do(
    runtime: str | None, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        found = {"heterocc": "0.2.0", "heterocc-runtime": runtime}[name]
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", installed)
    if not fails:
        version.require_one_release()
        return
    with pytest.raises(NativePluginError, match="are installed, and share files") as caught:
        version.require_one_release()
    assert "uninstall heterocc heterocc-runtime" in str(caught.value.hint)
