"""The steps of `run` and `bench`, which `heterocc` and `heterocc-run` share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.files.reading import reading
from heterocc.runtime import Session, load
from heterocc.runtime.cli.bench import BenchResult, Peer, bench, request_count
from heterocc.runtime.cli.reports import outputs_json
from heterocc.runtime.files.inputs import input_files, read_inputs
from heterocc.runtime.files.outputs import require_place, write_outputs
from heterocc.runtime.profile.profile import Profile
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
    """The timings of `bench`, `report` as `--json` prints it, and times per kernel if they were measured."""

    variant: str
    result: BenchResult
    report: dict[str, object]
    profile: Profile | None


def run_bundle(
    opening: Opening,
    feeding: Feeding,
    outputs: Path | None,
    *,
    profile: bool,
    show_notes: ShowNotes,
) -> RunResult:
    """Run a bundle once, and write its outputs if a place is given. Raises the errors of reading, running, writing."""
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
        return RunResult(results, report, session.profile() if profile else None)


def require_plain_csv(*, csv: bool, json: bool, profile: bool) -> None:
    """Raise UsageError (HC120) for --csv beside an option whose output is not CSV."""
    if csv and (json or profile):
        raise UsageError(f"--csv cannot be combined with {'--json' if json else '--profile'}", where="--csv")


def bench_bundle(
    opening: Opening,
    feeding: Feeding,
    *,
    seconds: float,
    iterations: int | None,
    requests: int | None,
    warmup: int,
    profile: bool,
    show_notes: ShowNotes,
    against: Sequence[Peer] = (),
) -> BenchReport:
    """Time a bundle, as `heterocc.runtime.cli.bench.bench` does. `requests` None is the default for the hint."""
    with opening.session() as session:
        show_notes(session.notes, opening.devices)
        feed = feeding.read(opening, session)
        result = bench(
            session,
            feed,
            seconds=seconds,
            iterations=iterations,
            requests=request_count(session, requests, opening.hint, opening.devices),
            warmup=warmup,
            against=against,
            threads=opening.threads,
        )
    report = {**result.to_json(), "notes": list(session.notes)}
    if not profile:
        return BenchReport(session.variant.name, result, report, None)
    # In a separate session: the hooks of the profile would slow down the measurement above.
    with opening.session(profile=True) as profiled:
        profiled.run(feed)
        profiled.clear_profile()
        for _ in range(PROFILED_RUNS):
            profiled.run(feed)
        times = profiled.profile()
    return BenchReport(session.variant.name, result, {**report, "profile": times.to_json()}, times)
