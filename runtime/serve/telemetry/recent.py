"""The latency and throughput of one model version in the last minute, for the page at `/`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from time import monotonic

WINDOW = 60
"""Seconds that are remembered."""

LATENCIES = 1024
"""Latencies that are remembered, at most."""


@dataclass(slots=True)
class _Second:
    number: int
    requests: int = 0
    errors: int = 0


class Recent:
    """Requests per second, and the latencies of the latest ones. Memory is bounded."""

    def __init__(self) -> None:
        self._seconds: deque[_Second] = deque(maxlen=WINDOW + 1)
        self._latencies: deque[tuple[float, float]] = deque(maxlen=LATENCIES)

    def add(self, seconds: float, ok: bool) -> None:
        """Record a request that has ended. The latency of one that failed is not counted."""
        now = monotonic()
        if not self._seconds or self._seconds[-1].number != int(now):
            self._seconds.append(_Second(int(now)))
        self._seconds[-1].requests += ok
        self._seconds[-1].errors += not ok
        if ok:
            self._latencies.append((now, seconds))

    def to_json(self) -> dict[str, object]:
        """`per_second` and `errors_per_second` have a number for each full second of the window, oldest first.

        `p50_ms` and `p99_ms` are None without a request in the window.
        """
        now = monotonic()
        seconds = {s.number: s for s in self._seconds}
        window = [seconds.get(n) for n in range(int(now) - WINDOW, int(now))]
        latencies = sorted(latency for end, latency in self._latencies if end >= now - WINDOW)
        return {
            "per_second": [s.requests if s else 0 for s in window],
            "errors_per_second": [s.errors if s else 0 for s in window],
            "p50_ms": _quantile(latencies, 0.5),
            "p99_ms": _quantile(latencies, 0.99),
        }


def _quantile(ordered: list[float], share: float) -> float | None:
    return round(ordered[int(share * (len(ordered) - 1))] * 1e3, 3) if ordered else None
