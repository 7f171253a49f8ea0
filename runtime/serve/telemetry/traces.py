"""A trace of a service's requests, in the trace format of Chrome, which Perfetto (ui.perfetto.dev) opens.

The file is an array whose end may be missing, as the format allows: what a service wrote before it was killed is valid.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import IO, Any

from heterocc.artifacts.errors import OutputFileError
from heterocc.artifacts.files.writing import require_writable
from heterocc.runtime.serve.names import shown
from heterocc.runtime.serve.telemetry.statistics import Timing

MOST_BYTES = 256 << 20
"""The size of a trace, beyond which requests are not recorded."""

_WRITTEN_EVERY = 1.0
"""Seconds after which what was recorded is written to the file."""

_log = logging.getLogger(__name__)


class RequestTrace:
    """Requests with their steps: a process for each model version, with a track for each request at a time.

    For use on one event loop. Times are from `perf_counter`, in seconds.
    """

    def __init__(self, path: Path) -> None:
        """Begin the file. Raises OutputFileError (HC111)."""
        require_writable(path)
        try:
            self._file: IO[bytes] = path.open("wb")
        except OSError as error:
            raise OutputFileError(f"cannot write the trace: {error.strerror}", where=str(path)) from error
        self._path = path
        self._started = self._flushed = perf_counter()
        self._processes: dict[tuple[str, str], int] = {}
        self._tracks: dict[int, list[float]] = {}
        self._bytes = 0
        self._broken = False
        self._write(b"[\n")

    def add(
        self, name: str, version: str, arrival: float, end: float, *, steps: Iterator[tuple[str, float, float]],
        details: dict[str, Any], parent: str = "",
    ) -> None:  # fmt: skip
        """Record a request that has ended, with the name, beginning and end of each of its steps.

        `parent` is its header `traceparent`.
        """
        details = {**details, "traceparent": parent[:64]} if parent else details
        key = (shown(name), shown(version))
        process = self._processes.get(key)
        if process is None:
            process = self._processes[key] = len(self._processes) + 1
            self._event(ph="M", name="process_name", pid=process, tid=0, args={"name": f"{key[0]} {key[1]}"})
        tracks = self._tracks.setdefault(process, [])
        track = next((index for index, free in enumerate(tracks) if free <= arrival), len(tracks))
        tracks[track:] = [end, *tracks[track + 1 :]]
        self._complete("request", process, track + 1, arrival, end, details)
        for step, begin, ended in steps:
            self._complete(step, process, track + 1, begin, ended, {})
        if end - self._flushed > _WRITTEN_EVERY:
            self._flushed = end
            self._guarded(self._file.flush)

    def close(self) -> None:
        """End the file."""
        self._write(b'{"ph": "M", "name": "trace_ended", "pid": 0, "tid": 0}\n]\n')
        self._guarded(self._file.close)

    def _complete(self, name: str, process: int, track: int, begin: float, end: float, details: dict[str, Any]) -> None:
        since = (begin - self._started) * 1e6
        duration = max(end - begin, 0.0) * 1e6
        self._event(ph="X", name=name, pid=process, tid=track, ts=since, dur=duration, args=details)

    def _event(self, **event: Any) -> None:
        self._write(json.dumps(event).encode() + b",\n")

    def _write(self, data: bytes) -> None:
        if self._bytes <= MOST_BYTES < self._bytes + len(data):
            _log.warning("the trace is full", extra={"path": os.fspath(self._path), "bytes": self._bytes})
        self._bytes += len(data)
        if self._bytes <= MOST_BYTES:
            self._guarded(lambda: self._file.write(data))

    def _guarded(self, act: Any) -> None:
        """A full disk must not end a service: the trace stops, and the log says so."""
        if self._broken:
            return
        try:
            act()
        except OSError as error:
            self._broken = True
            _log.warning(f"the trace ends: {error.strerror}", extra={"path": os.fspath(self._path)})


def steps_of(queued: float, started: float, ended: float, timing: Timing) -> Iterator[tuple[str, float, float]]:
    """The steps of a request that a worker took: waiting, decoding, running, encoding."""
    yield "wait", queued, started
    at = started
    for name, nanoseconds in (("decode", timing.decode), ("run", timing.run), ("encode", timing.encode)):
        if nanoseconds:
            yield name, at, min(at + nanoseconds / 1e9, ended)
            at += nanoseconds / 1e9
