"""The steps of `run` and `bench`, which `heterocc` and `heterocc-run` share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.files.reading import reading
from heterocc.artifacts.files.writing import require_writable
from heterocc.runtime import Session, load
from heterocc.runtime.cli.bench import Measure, Peer, bench, forget_peak_memory, request_count
from heterocc.runtime.cli.process import interruptible
from heterocc.runtime.cli.reports import outputs_json
from heterocc.runtime.cli.sweep import NO_SWEEP, Sweep
from heterocc.runtime.cli.table import TextTable
from heterocc.runtime.cli.timing import BenchResult, bench_table, sweep_table, write_times
from heterocc.runtime.files.inputs import input_files, read_inputs
from heterocc.runtime.files.outputs import require_place, write_outputs
from heterocc.runtime.profile.profile import Profile
from heterocc.runtime.profile.timeline import write_trace
from heterocc.runtime.requests.limits import Aim

PROFILED_RUNS = 5
"""Runs averaged by the profile of `bench`, after one warm-up run."""

ShowNotes = Callable[[Sequence[str], str | None], None]
"""Shows a session's notes, given those and the requested devices."""


@dataclass(frozen=True, slots=True)
class Opening:
    """How a command opens a bundle: arguments of `heterocc.runtime.load`."""

    bundle: Path
    devices: str | None = None
    threads: int | None = None
    trusted_keys: Sequence[str] | None = None
    require_signature: bool = False
    hint: Aim | None = None

    def session(self, *, profile: bool = False) -> Session:
        """A session of the bundle."""
        return load(
            self.bundle,
            self.devices,
            threads=self.threads,
            hint=self.hint,
            profile=profile,
            trusted_keys=self.trusted_keys,
            require_signature=self.require_signature,
        )


@dataclass(frozen=True, slots=True)
class Feeding:
    """The inputs of a command: files, else values from a seed at these shapes; see `read_inputs`."""

    files: Sequence[str] = ()
    seed: int = 0
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)

    def read(self, opening: Opening, session: Session) -> dict[str, Any]:
        """The inputs by name."""
        return read_inputs(opening.bundle, session, self.files, self.seed, shapes=self.shapes, dims=self.dims)


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outputs of a run by name, `report` as `--json` prints it, and times if they were measured."""

    outputs: dict[str, Any]
    report: dict[str, object]
    profile: Profile | None


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The timings of `bench`, one for each point of a sweep, and times per kernel if they were measured.

    `report` is what `--json` prints.
    """

    variant: str
    results: tuple[BenchResult, ...]
    report: dict[str, object]
    profile: Profile | None

    def lines(self) -> Iterator[str | TextTable]:
        """What is printed of the timings."""
        first = self.results[0]
        if len(self.results) == 1:
            yield first.describe()
            if first.start is not None:
                yield first.start.describe()
            yield bench_table(first)
        else:
            yield replace(first, sizes={}).describe().rsplit(", ", 1)[0]
            yield sweep_table(self.results)
            if self.results[-1].interrupted:
                yield "interrupted: the last line is of fewer runs, and points after it are missing"


def run_bundle(
    opening: Opening,
    feeding: Feeding,
    outputs: Path | None,
    *,
    profile: bool,
    trace: Path | None = None,
    show_notes: ShowNotes,
) -> RunResult:
    """Run a bundle once, and write its outputs, and a trace of the run, if places are given.

    Raises the errors of reading, running, writing.
    """
    require_profile("--trace", trace, profile=profile)
    with reading({**input_files(feeding.files), opening.bundle: "the bundle"}), contextlib.ExitStack() as stack:
        if outputs is not None:
            require_place(outputs, ())
        session = stack.enter_context(opening.session(profile=profile))
        if outputs is not None:
            require_place(outputs, [spec.name for spec in session.outputs])
        show_notes(session.notes, opening.devices)
        results = session.run(feeding.read(opening, session))
        if outputs is not None:
            write_outputs(outputs, results)
        report = outputs_json(session, results, profile)
        times = session.profile() if profile else None
        if times is not None and trace is not None:
            write_trace(trace, times)
        return RunResult(results, report, times)


def require_profile(option: str, file: Path | None, *, profile: bool) -> None:
    """Raise UsageError (HC120) for a file that shows a profile without --profile, and HC111 if it cannot be written."""
    if file is None:
        return
    if not profile:
        hint = "add --profile" + (", or see `heterocc explain --report` for estimates" if option == "--report" else "")
        raise UsageError(f"{option} shows the profile, which was not asked for", where=f"{option} {file}", hint=hint)
    require_writable(file)


def require_plain_csv(*, csv: bool, json: bool, profile: bool) -> None:
    """Raise UsageError (HC120) for --csv beside an option whose output is not CSV."""
    if csv and (json or profile):
        raise UsageError(f"--csv cannot be combined with {'--json' if json else '--profile'}", where="--csv")


def bench_bundle(
    opening: Opening,
    feeding: Feeding,
    measure: Measure,
    *,
    sweep: Sweep = NO_SWEEP,
    times: Path | None = None,
    profile: bool,
    trace: Path | None = None,
    show_notes: ShowNotes,
    against: Sequence[Peer] = (),
) -> BenchReport:
    """Time a bundle, as `heterocc.runtime.cli.bench.bench` does, at each point of a sweep.

    `times` is a file for the time of every run, `trace` one for the runs of the profile, which Perfetto opens. The
    first SIGINT ends the measurement, and what it has is reported.
    """
    require_profile("--trace", trace, profile=profile)
    if times is not None:
        require_writable(times)
    results: list[BenchResult] = []
    notes: dict[str, None] = {}
    with interruptible() as interrupted:
        for threads in sweep.threads or (opening.threads,):
            opened = replace(opening, threads=threads)
            forget_peak_memory()
            before = time.perf_counter()
            with opened.session() as session:
                load_seconds = time.perf_counter() - before
                show_notes([note for note in session.notes if note not in notes], opening.devices)
                notes.update(dict.fromkeys(session.notes))
                for sizes in sweep.sizes(session):
                    feed = replace(feeding, dims={**feeding.dims, **sizes}).read(opened, session)
                    requests = request_count(session, measure.requests, opening.hint, opening.devices)
                    result = bench(
                        session, feed, measure, requests=requests, against=against, threads=threads,
                        load_seconds=load_seconds, ended=interrupted.is_set,
                    )  # fmt: skip
                    results.append(replace(result, sizes=sizes))
                    if interrupted.is_set():
                        break
            if interrupted.is_set():
                break
    if times is not None:
        write_times(times, results)
    name = session.variant.name
    report: dict[str, object] = {**results[0].to_json(), "notes": list(notes)}
    if sweep:
        report = {"sweep": [result.to_json() for result in results], "notes": list(notes)}
    if not profile or interrupted.is_set():
        return BenchReport(name, tuple(results), report, None)
    # In a separate session: the hooks of the profile would slow down the measurement above.
    with opened.session(profile=True) as profiled:
        profiled.run(feed)
        profiled.clear_profile()
        for _ in range(PROFILED_RUNS):
            profiled.run(feed)
        found = profiled.profile()
        if trace is not None:
            write_trace(trace, found)
    return BenchReport(name, tuple(results), {**report, "profile": found.to_json()}, found)
