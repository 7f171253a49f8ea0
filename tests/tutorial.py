"""Runs docs/tutorial.md: each block of commands and of Python, in the order of the page.

Usage: python -m tests.tutorial [FOLDER]
Creates a fresh environment in FOLDER (default: a temporary folder), installs there what the page says, from this
checkout, and runs the other blocks with it.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorial.md"


def blocks() -> list[tuple[str, str]]:
    """The language and the text of each block."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M)


def is_installation(block: str) -> bool:
    """Return whether a block installs heterocc."""
    return "pip install" in block


class Tutorial:
    """The blocks, run in `folder` with the programs of an environment."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.programs = folder, programs
        self._service: subprocess.Popen[bytes] | None = None
        self._http, self._grpc = _free_port(), _free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
        self._env = {**kept, "PATH": f"{programs}:{os.environ['PATH']}", "HETEROCC_CACHE": str(folder / "cache")}

    def run(self) -> None:
        """All blocks but the installation. Raises CalledProcessError for one that fails."""
        try:
            for language, text in blocks():
                if language == "python":
                    self._call(
                        [str(self.programs / "python"), "-c", text.replace("localhost:8000", f"localhost:{self._http}")]
                    )
                elif language == "sh" and not is_installation(text):
                    for command in text.splitlines():
                        self._command(command)
        finally:
            if self._service is not None:
                self._service.terminate()
                ended = self._service.wait(60)
                assert ended == 0, f"the service ended with {ended}"

    def install(self) -> None:
        """The blocks of the installation, in the checkout."""
        for _, text in blocks():
            if is_installation(text):
                self._call(["bash", "-euo", "pipefail", "-c", text], ROOT)

    def _command(self, command: str) -> None:
        if not command.startswith("heterocc serve"):
            self._call(["bash", "-euo", "pipefail", "-c", command])
            return
        ports = f" --http-port {self._http} --grpc-port {self._grpc}"  # another service may have the page's
        self._service = subprocess.Popen(["bash", "-c", f"exec {command}{ports}"], cwd=self.folder, env=self._env)
        _wait_for(f"http://localhost:{self._http}/v2/health/ready", self._service)

    def _call(self, command: list[str], folder: Path | None = None) -> None:
        subprocess.run(command, cwd=folder or self.folder, env=self._env, check=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _wait_for(address: str, service: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert service.poll() is None, "the service ended"
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise TimeoutError(address)


def main() -> None:
    given = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
    folder = given or Path(tempfile.mkdtemp(prefix="heterocc-tutorial-"))
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
        tutorial = Tutorial(folder, folder / "environment" / "bin")
        tutorial.install()
        tutorial.run()
        print("every step of docs/tutorial.md ran in the environment that it describes")
    finally:
        if given is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
