"""The documentation site builds without a warning, and has what is made from the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_site_builds_with_warnings_as_errors_and_has_every_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "commands.html").read_text()
    for name in ("compile", "run", "serve"):
        assert f'id="heterocc-{name}"' in commands
    assert "--require-signature" in commands
    assert "trusted_keys" in (tmp_path / "python.html").read_text()
    assert "0001-results-go-into-the-callers-memory.html" in (tmp_path / "decisions" / "index.html").read_text()
