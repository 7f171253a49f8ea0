"""The number of requests that a session runs at the same time, and of threads for each."""

from __future__ import annotations

from typing import Literal, get_args

from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.manifest import Variant
from heterocc.runtime.execute.tvm_api import max_threads

Aim = Literal["latency", "throughput"]
MAX_REQUESTS = 1024


def check_aim(aim: str | None) -> None:
    """Raise UsageError unless it is None or one of the aims."""
    if aim is not None and aim not in get_args(Aim):
        raise UsageError(
            f"hint must be 'latency' or 'throughput', not {aim!r}"[:200],
            where="hint",
            hint="leave it out for the defaults",
        )


def check_requests(requests: int | None) -> None:
    """Raise UsageError unless it is None or a number of requests."""
    if requests is not None and (type(requests) is not int or not 1 <= requests <= MAX_REQUESTS):
        raise UsageError(
            f"requests must be an integer between 1 and {MAX_REQUESTS}, not {requests!r}"[:200],
            hint="leave it out for the default",
        )


def threads_for(aim: Aim | None, threads: int | None) -> int | None:
    """The number of CPU threads of one run: the caller's, or one if the aim is throughput; None for the default."""
    return 1 if threads is None and aim == "throughput" else threads


def request_limit(
    variant: Variant, threads: int, requests: int | None, aim: Aim | None, *, changes: bool = False
) -> int:
    """The number of requests that run at the same time on a variant whose runs use `threads` CPU threads.

    `changes`: the variant will be replaced by one for another device.
    """
    if requests is not None:
        return requests
    if aim == "latency":
        return 1
    return max(_stages(variant, changes=changes), max_threads() // threads)


def _stages(variant: Variant, *, changes: bool) -> int:
    """The number of requests with which all devices of a variant work at the same time, each on another one.

    One for each device with partitions, and one more: copied while the others compute, or next when a device is done.
    """
    used = {(d.backend, d.index) for d in (variant.devices[p.device] for p in variant.partitions)}
    devices = {device for device in used if device[0] not in ("cpu", "ort")}
    if not devices:
        return 2 if changes else 1
    return len(devices) + (len(used) > len(devices)) + 1
