"""docs/tutorial.md: its steps, and the extras that they need."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.tutorial import ROOT, Tutorial, blocks, is_installation


def test_the_installation_names_the_extras_that_the_steps_need() -> None:
    (install,) = [text for _, text in blocks() if is_installation(text)]
    named = set(re.findall(r"\.\[([\w,]+)\]", install)[0].split(","))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    text = "\n".join(text for _, text in blocks())
    needed = {extra for extra in ("sign", "serve") if f"heterocc {extra}" in text}
    assert named == needed <= set(extras)
    assert ("tritonclient" in text) == ("tritonclient[http]" in install)


@pytest.mark.slow
def test_every_step_of_the_tutorial_runs(tmp_path: Path) -> None:
    # `python -m tests.tutorial` does the same in a fresh environment, with the installation that the page describes.
    Tutorial(tmp_path, Path(sys.executable).parent).run()
