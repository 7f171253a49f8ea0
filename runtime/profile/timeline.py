"""A profile's runs one by one, in the trace format of Chrome, which Perfetto (ui.perfetto.dev) opens.

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heterocc.artifacts.files.writing import atomic_write
from heterocc.runtime.profile.profile import Profile, ProfileEvent

_TRANSFERS = "transfers"
_CLOCK = "kernels, by the device's clock"


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """The events of a profile: a process for each device and one for transfers, a track for each calling thread.

    Kernels lie within their partition, except those timed by the device's clock, which have a track of their own.
    """
    devices: dict[str, int] = {}
    tracks: dict[tuple[int, str], int] = {}
    threads: dict[int, int] = {}
    events: list[dict[str, Any]] = []
    for event in profile.events:
        record = event.record
        process = devices.setdefault(_TRANSFERS if record.kind == "transfer" else record.device, len(devices) + 1)
        caller = threads.setdefault(event.thread, len(threads) + 1)
        name = _CLOCK if record.clock == "device" else f"calling thread {caller}"
        track = tracks.setdefault((process, name), len(tracks) + 1)
        events.append(_complete(event, process, track))
    names = [_name("process_name", process, 0, device) for device, process in devices.items()]
    names += [_name("thread_name", process, track, name) for (process, name), track in tracks.items()]
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms"}


def write_trace(path: Path, profile: Profile) -> None:
    """Write the trace. Raises OutputFileError (HC111)."""
    atomic_write(path, json.dumps(chrome_trace(profile)).encode())


def _complete(event: ProfileEvent, process: int, track: int) -> dict[str, Any]:
    """A complete event; its times are microseconds."""
    record = event.record
    arguments = {"type": record.layer_type, "kernel": record.exec_type, "partition": record.partition}
    return {
        "ph": "X",
        "name": record.name,
        "cat": record.kind,
        "pid": process,
        "tid": track,
        "ts": event.begin / 1e3,
        "dur": (event.end - event.begin) / 1e3,
        "args": {**arguments, "nodes": list(record.nodes[:20])},
    }


def _name(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}
