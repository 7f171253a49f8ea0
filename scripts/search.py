"""Search for examples that fail: run every hypothesis test again and again with fresh seeds, for a given time.

A failure does not end the search. At the end each is printed with what to pin: the example as hypothesis prints it.
The exit status is 1 if anything failed, 2 if nothing was run.

Each file is run by a pytest of its own, for a share of the time at most, so that a costly one leaves time to the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SHARE = 20
"""A file gets this part of the time in a round, but `SHORTEST` at least."""

SHORTEST = 60.0
"""Seconds."""

SHRINKING = 300.0
"""Seconds that hypothesis gets to find a failure again and make its example smaller."""

NOTHING_RUN = 5
"""Exit status of a pytest that finds no test to run."""


@dataclass(frozen=True)
class Outcome:
    """The result of a test, as `search_plugin.py` writes it; all texts but `test` are empty if it passed."""

    test: str
    place: str = ""
    message: str = ""
    failure: str = ""
    examples: int = 0


@dataclass
class Failure:
    """One way in which a test failed, as it was seen first."""

    test: str
    seed: int
    report: str
    seen: int = 1


@dataclass
class Search:
    """The results so far: examples by test, and failures by test and place in the source."""

    rounds: int = 0
    examples: dict[str, int] = field(default_factory=dict)
    failures: dict[tuple[str, str], Failure] = field(default_factory=dict)

    def knows(self, outcome: Outcome) -> bool:
        """Whether a test has failed so before; counts it then."""
        found = self.failures.get(_way(outcome))
        if found is not None:
            found.seen += 1
        return found is not None

    def fail(self, outcome: Outcome, seed: int, report: str) -> None:
        """Note a new failure, and print it."""
        self.failures[_way(outcome)] = Failure(outcome.test, seed, to_pin(report))
        print(f"search: {outcome.test} failed with seed {seed}: {_first_line(outcome)}", flush=True)

    def summary(self) -> str:
        """All that failed, and what to pin."""
        lines = []
        for failure in self.failures.values():
            times = "once" if failure.seen == 1 else f"{failure.seen} times"
            lines += [f"{failure.test} failed {times}, first with --hypothesis-seed={failure.seed}"]
            lines += [f"    {line}".rstrip() for line in failure.report.splitlines()]
            lines += [""]
        if lines:
            lines += ["Mend each, and pin its example above the test's @given, as @example(...).", ""]
        total = sum(self.examples.values())
        lines += [
            f"{total} examples of {len(self.examples)} tests in {self.rounds} rounds; {len(self.failures)} failures"
        ]
        return "\n".join(lines)


def _way(outcome: Outcome) -> tuple[str, str]:
    return outcome.test, outcome.place or _first_line(outcome)


def _first_line(outcome: Outcome) -> str:
    return outcome.message.partition("\n")[0]


def main() -> int:
    """Run the search that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to search (default: 60)")
    parser.add_argument("--rounds", type=int, help="end after so many rounds")
    parser.add_argument("files", nargs="*", type=Path, help="test files (default: all that have a hypothesis test)")
    asked = parser.parse_args()
    end = time.monotonic() + asked.minutes * 60
    share = max(SHORTEST, asked.minutes * 60 / SHARE)
    files = asked.files or [f for f in sorted(ROOT.glob("tests/**/test_*.py")) if "\n@given(" in f.read_text("utf-8")]
    search = Search()
    try:
        while search.rounds != asked.rounds and time.monotonic() < end:
            search.rounds += 1
            random.shuffle(files)
            for file in files:
                left = end - time.monotonic()
                if left > 0:
                    run(search, file, random.randrange(1 << 32), min(left, share))
    except KeyboardInterrupt:
        print("search: interrupted", flush=True)
    print(search.summary(), flush=True)
    return 1 if search.failures else 0 if search.examples else 2


def run(search: Search, file: Path, seed: int, seconds: float) -> None:
    """Run the hypothesis tests of a file for so many seconds at most, and make examples that fail smaller."""
    outcomes, status, output = pytest(str(file), seed, "search", seconds)
    for outcome in outcomes:
        search.examples[outcome.test] = search.examples.get(outcome.test, 0) + outcome.examples
        if outcome.failure and not search.knows(outcome):
            again, _, _ = pytest(f"{file}::{outcome.test.partition('::')[2]}", seed, "search-shrink", SHRINKING)
            smaller = next((o for o in again if o.failure), outcome)
            search.fail(outcome, seed, smaller.failure)
    if status not in (0, NOTHING_RUN, None) and not any(o.failure for o in outcomes):
        search.fail(Outcome(str(file), message=f"pytest ended with status {status}"), seed, output[-4000:])


def to_pin(failure: str) -> str:
    """The part of a failure's text that gives the exception and the example; all of it if nothing is marked so."""
    marked = [line.removeprefix("E").removeprefix("   ") for line in failure.splitlines() if line.startswith("E ")]
    return "\n".join(marked) or failure


def pytest(tests: str, seed: int, profile: str, seconds: float) -> tuple[list[Outcome], int | None, str]:
    """The results of tests that ended in time; pytest's exit status, None if time ran out; and its output."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "search_plugin", "-p", "no:cacheprovider"),
        *("-m", "hypothesis and not models", f"--hypothesis-profile={profile}", f"--hypothesis-seed={seed}", tests),
    ]
    path = os.pathsep.join(filter(None, (str(ROOT / "scripts"), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory(prefix="heterocc-search-") as folder:
        started = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "HETEROCC_SEARCH": folder, "PYTHONPATH": path, "TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = started.communicate(timeout=seconds)
            status: int | None = started.returncode
        except subprocess.TimeoutExpired:
            status, output = None, ""
        finally:
            # Not interrupted: TVM makes an error of its own of that, which looks like a failure of the test.
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.communicate()
        report = Path(folder, "report.jsonl")
        lines = report.read_text("utf-8").splitlines() if report.exists() else []
    return [Outcome(**json.loads(line)) for line in lines], status, output


if __name__ == "__main__":
    sys.exit(main())
