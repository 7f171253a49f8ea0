"""`heterocc serve` as a separate process, and bundles for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from tests.runtime import standin
from tests.runtime.standin import Model, Op, Part

COMMAND = (sys.executable, "-m", "heterocc.compiler.cli", "serve")
RUNTIME_COMMAND = (sys.executable, "-c", "from heterocc.runtime.cli.main import main; main()", "serve")
SLOW_STEPS = 200
SLOW_SHAPE = (1 << 17,)
"""A chain of so many partitions with such values takes about 12 ms."""


class ServiceProcess:
    """A service on free ports; its log is read as it is written."""

    def __init__(
        self, *arguments: object, environment: Mapping[str, str] | None = None, command: Sequence[str] = COMMAND
    ) -> None:
        self.process = subprocess.Popen(
            [*command, "--http-port", "0", "--grpc-port", "0", *map(str, arguments)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.log: list[dict[str, Any]] = []
        self.other_lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        self.wait_for("ready")
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        if self.process.stderr is not None:
            self.process.stderr.close()

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.record('listening')['http_port']}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.record('listening')['grpc_port']}"

    def record(self, message: str) -> dict[str, Any]:
        """The first log record with a message."""
        return next(r for r in self.log if r["message"] == message)

    def wait_for(self, message: str, seconds: float = 60.0) -> dict[str, Any]:
        """Wait for a log record."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or any(r["message"] == message for r in self.log), seconds)
        assert any(r["message"] == message for r in self.log), (self.log, self.other_lines)
        return self.record(message)

    def end(self, number: int = signal.SIGTERM, seconds: float = 60.0) -> int:
        """Send a signal and wait; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def get(self, path: str) -> bytes:
        """The body of a page."""
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=30) as response:
            return bytes(response.read())

    def metric(self, line: str) -> float:
        """The value of the metric whose name and labels are `line`; 0 if there is none."""
        for found in self.get("/metrics").decode().splitlines():
            name, _, value = found.rpartition(" ")
            if name == line:
                return float(value)
        return 0.0

    def wait_for_metric(self, line: str, value: float, seconds: float = 20.0) -> None:
        """Wait until a metric has at least a value."""
        end = time.monotonic() + seconds
        while self.metric(line) < value:
            assert time.monotonic() < end, f"{line} is {self.metric(line)}, not {value}"
            time.sleep(0.02)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                if line.startswith("{"):
                    self.log.append(json.loads(line))
                else:
                    self.other_lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def two_by_two() -> Model:
    """Two inputs and two outputs of several datatypes: s = a + b in float32, p = c * c in int8, f = f."""
    return Model(
        values={"a": ("float32", (2, 3)), "b": ("float32", (2, 3)), "s": ("float32", (2, 3)),
                "c": ("int8", (4,)), "p": ("int8", (4,)), "flag": ("bool", (2,))},
        inputs=("a", "b", "c", "flag"),
        outputs=("s", "p", "flag"),
        parts=(
            Part(0, ("a", "b"), ("s",), (Op("add", "add", ("a", "b"), "s"),)),
            Part(0, ("c",), ("p",), (Op("mul", "mul", ("c", "c"), "p"),)),
        ),
    )  # fmt: skip


def passed_through() -> Model:
    """Outputs that are the inputs: strings, bfloat16, and a float32 vector of any length."""
    values = {"text": ("string", (2,)), "narrow": ("bfloat16", (3,)), "any": ("float32", (None,))}
    return Model(values, inputs=tuple(values), outputs=tuple(values), parts=())


def write_models(folder: Path) -> Path:
    """A folder for the service: `chain` (x + 3), `mixed`, `passed`, and `versions` 1, 2 and 10 (x + their number)."""
    (folder / "versions").mkdir(parents=True)
    standin.write_bundle(folder / "chain.hcb", standin.chain(3))
    standin.write_bundle(folder / "mixed.hcb", two_by_two())
    standin.write_bundle(folder / "passed.hcb", passed_through())
    for version in (1, 2, 10):
        standin.write_bundle(folder / "versions" / f"{version}.hcb", standin.chain(version))
    (folder / "README.txt").write_text("not a bundle")
    return folder


X = np.arange(16, dtype=np.float32)
