"""Times of runs and what is said of them: percentiles, means, throughput, how well the median is known."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.files.writing import atomic_write
from heterocc.runtime.cli.table import TextTable

SHARES = (50.0, 90.0, 99.0)
"""The percentiles that are shown if no others are asked for."""

FEW = 30
"""Runs below which nothing is said about how well the median is known."""

_NORMAL = 1.96
"""Standard deviations of a normal distribution on each side of its mean within which 95 % lie."""


@dataclass(frozen=True)
class Timing:
    """Times of one runner: `latencies` in seconds per run, and `wall`, the seconds of all runs together."""

    name: str
    latencies: tuple[float, ...]
    wall: float

    def __repr__(self) -> str:
        """One short line; `latencies` holds every run."""
        return f"<Timing {self.name}: {len(self.latencies)} runs, median {self.percentile(50):.3f} ms>"

    def percentile(self, q: float) -> float:
        """Latency in milliseconds below which `q` percent of the runs lie."""
        return float(np.percentile(self.latencies, q)) * 1e3

    @property
    def mean(self) -> float:
        """Mean latency in milliseconds."""
        return float(np.mean(self.latencies)) * 1e3

    @property
    def deviation(self) -> float:
        """Standard deviation of the latency in milliseconds; 0 for a single run."""
        return float(np.std(self.latencies, ddof=1)) * 1e3 if len(self.latencies) > 1 else 0.0

    @property
    def throughput(self) -> float:
        """Runs per second."""
        return len(self.latencies) / self.wall if self.wall else 0.0

    @property
    def uncertainty(self) -> float | None:
        """Half the width of the median's 95 % confidence interval, in percent of the median; None for few runs.

        The interval is that of order statistics: the number of runs below the true median is binomial.
        """
        return median_uncertainty(self.latencies)

    def to_json(self, shares: Sequence[float] = SHARES) -> dict[str, object]:
        """As `--json` prints it; times in milliseconds."""
        times = {name: round(self.percentile(q), 4) for name, q in percentiles(shares)}
        return {
            "name": self.name,
            "runs": len(self.latencies),
            "latency_ms": times,
            "mean_ms": round(self.mean, 4),
            "deviation_ms": round(self.deviation, 4),
            "median_uncertainty_percent": None if self.uncertainty is None else round(self.uncertainty, 3),
            "throughput": round(self.throughput, 3),
        }


def median_uncertainty(latencies: Sequence[float]) -> float | None:
    """Half the width of the median's 95 % confidence interval in percent of the median; None for few runs."""
    count = len(latencies)
    if count < FEW:
        return None
    half = _NORMAL * math.sqrt(count) / 2
    low, high = max(math.floor((count - 1) / 2 - half), 0), min(math.ceil((count - 1) / 2 + half), count - 1)
    ordered = np.sort(np.asarray(latencies))
    median = float(np.median(ordered))
    return 50.0 * float(ordered[high] - ordered[low]) / median if median else 0.0


def is_known(latencies: Sequence[float], percent: float) -> bool:
    """Whether the median is known to so many percent: its interval says so, and both halves of the runs agree.

    The interval takes runs as independent, but threads that start to work, or another program, change many in a row.
    """
    uncertainty = median_uncertainty(latencies)
    if uncertainty is None or uncertainty > percent:
        return False
    middle = len(latencies) // 2
    first, second = (float(np.median(half)) for half in (latencies[:middle], latencies[middle:]))
    return abs(first - second) <= percent / 100 * max(first, second)


def percentiles(shares: Sequence[float]) -> tuple[tuple[str, float], ...]:
    """The names of columns with their percentiles, between `min` and `max`."""
    named = [("median" if share == 50 else f"p{share:g}", share) for share in shares]
    return (("min", 0.0), *named, ("max", 100.0))


def parse_shares(text: str | None) -> tuple[float, ...]:
    """The percentiles of `--percentiles 50,95,99.9`. Raises UsageError (HC120)."""
    if text is None:
        return SHARES
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0 < share < 100 for share in shares):
        raise UsageError(
            f"'{text}' is not a list of percentiles",
            where="--percentiles",
            hint="numbers above 0 and below 100: 50,95,99.9",
        )
    return tuple(sorted(set(shares)))


@dataclass(frozen=True)
class Start:
    """What a session costs before its runs: seconds to load and of the first run, and the process's peak memory."""

    load: float
    first: float
    memory: int | None

    def to_json(self) -> dict[str, object]:
        """As `--json` prints it."""
        return {
            "load_ms": round(self.load * 1e3, 3),
            "first_run_ms": round(self.first * 1e3, 3),
            "peak_memory_bytes": self.memory,
        }

    def describe(self) -> str:
        """One line."""
        memory = "" if self.memory is None else f", peak memory of the process {self.memory / 1e6:.0f} MB"
        return f"loaded in {self.load * 1e3:.1f} ms, first run {self.first * 1e3:.2f} ms{memory}"


@dataclass(frozen=True)
class BenchResult:
    """Timings of a bundle and, if requested, of its peers in the same run.

    `requests` ran at the same time, on `devices`, with `threads` CPU threads each. `interrupted` says that a signal
    ended the measurement; `shares` are the percentiles to show.
    """

    timings: tuple[Timing, ...]
    requests: int
    devices: tuple[str, ...] = ()
    threads: int | None = None
    start: Start | None = None
    interrupted: bool = False
    shares: tuple[float, ...] = SHARES
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Our median latency over the first peer's; below 1 is faster."""
        return next((found["median"] for found in self.ratios.values()), None)

    @property
    def ratios(self) -> dict[str, dict[str, float]]:
        """Our least and median latency over those of each peer; below 1 is faster."""
        ours, *peers = self.timings
        names = (("min", 0.0), ("median", 50.0))
        return {
            peer.name: {name: ours.percentile(q) / peer.percentile(q) for name, q in names if peer.percentile(q)}
            for peer in peers
        }

    def to_json(self) -> dict[str, object]:
        """As `--json` prints it."""
        return {
            "devices": list(self.devices),
            "threads": self.threads,
            "requests": self.requests,
            "sizes": dict(self.sizes),
            "results": [t.to_json(self.shares) for t in self.timings],
            "median_ratio": None if self.ratio is None else round(self.ratio, 4),
            "ratios": {peer: {k: round(v, 4) for k, v in found.items()} for peer, found in self.ratios.items()},
            "start": None if self.start is None else self.start.to_json(),
            "interrupted": self.interrupted,
        }

    def describe(self) -> str:
        """The conditions of the measurement."""
        several = self.requests != 1
        conditions = (
            f"{self.requests} request{'s' * several} at a time on {','.join(self.devices)}, "
            f"{self.threads} CPU thread{'s' * (self.threads != 1)}{' each' * several}"
        )
        sizes = "".join(f", {name}={size}" for name, size in self.sizes.items())
        return conditions + sizes + ("; interrupted" if self.interrupted else "")


def to_csv(results: Sequence[BenchResult]) -> str:
    """As `--csv` prints it: a line of names, and a line for each runner; times in milliseconds."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    sizes = list(dict.fromkeys(name for result in results for name in result.sizes))
    columns = percentiles(results[0].shares)
    times_of = [f"{name}_ms" for name, _ in columns]
    head = ("name", "devices", "threads", "requests", "runs")
    table.writerow([*head, *times_of, "runs_per_second", "mean_ms", "deviation_ms", *sizes])
    for result in results:
        for timing in result.timings:
            times = [f"{timing.percentile(q):.4f}" for _, q in columns]
            table.writerow(
                [timing.name, ",".join(result.devices), result.threads, result.requests, len(timing.latencies), *times]
                + [f"{timing.throughput:.3f}", f"{timing.mean:.4f}", f"{timing.deviation:.4f}"]
                + [result.sizes.get(name, "") for name in sizes]
            )
    return text.getvalue()


def bench_table(result: BenchResult) -> TextTable:
    """Latencies and throughput of each runner, and our times over those of each peer."""
    columns = percentiles(result.shares)
    titles = ("", "runs", *(f"{name} ms" for name, _ in columns), "mean ms", "± ms", "runs/s")
    rows: list[tuple[str, ...]] = []
    for timing in result.timings:
        cells = [f"{timing.percentile(q):.3f}" for _, q in columns]
        spread = (f"{timing.mean:.3f}", f"{timing.deviation:.3f}", f"{timing.throughput:.1f}")
        rows.append((timing.name, str(len(timing.latencies)), *cells, *spread))
    for peer, ratios in result.ratios.items():
        cells = [f"{ratios[name]:.2f}" if name in ratios else "" for name, _ in columns]
        rows.append((f"ratio to {peer}", "", *cells, "", "", ""))
    return TextTable(titles, tuple(rows), frozenset(range(1, len(titles))))


def sweep_table(results: Sequence[BenchResult]) -> TextTable:
    """A line for each measurement of a sweep: sizes, threads, our times, and our median over that of each peer."""
    sizes = list(dict.fromkeys(name for result in results for name in result.sizes))
    peers = list(dict.fromkeys(name for result in results for name in result.ratios))
    columns = percentiles(results[0].shares)
    titles = (*sizes, "threads", "runs", *(f"{name} ms" for name, _ in columns), "runs/s")
    rows = []
    for result in results:
        ours = result.timings[0]
        medians = [result.ratios.get(peer, {}).get("median") for peer in peers]
        rows.append(
            (
                *(str(result.sizes.get(name, "")) for name in sizes),
                str(result.threads),
                str(len(ours.latencies)),
                *(f"{ours.percentile(q):.3f}" for _, q in columns),
                f"{ours.throughput:.1f}",
                *("" if ratio is None else f"{ratio:.2f}" for ratio in medians),
            )
        )
    titles = (*titles, *(f"ratio to {peer}" for peer in peers))
    return TextTable(titles, tuple(rows), frozenset(range(len(titles))))


def write_times(path: Path, results: Sequence[BenchResult]) -> None:
    """Write the time of every run as CSV: sizes, threads, runner, number of the run, seconds. Raises HC111."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    sizes = list(dict.fromkeys(name for result in results for name in result.sizes))
    table.writerow([*sizes, "threads", "name", "run", "seconds"])
    for result in results:
        at = [*(result.sizes.get(name, "") for name in sizes), result.threads]
        for timing in result.timings:
            table.writerows([*at, timing.name, run, f"{seconds:.9f}"] for run, seconds in enumerate(timing.latencies))
    atomic_write(path, text.getvalue().encode())
