"""Running passes over a plan, with dumps, timings, a limit for bisection, and a reproducer for a crash."""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from heterocc.artifacts.errors import FileMissingError, HeteroccError, Hint, InputError, PassError, UsageError
from heterocc.artifacts.files.writing import atomic_write
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.text.printable import printable
from heterocc.compiler.options import CompileOptions, Stage
from heterocc.passes.base import MEASURED, Pass, parse_pipeline, policy_pipeline
from heterocc.passes.mincut import MinCut
from heterocc.passes.objective import require_objective
from heterocc.passes.plan import UNPLACED, Plan
from heterocc.passes.rules import within_rules
from heterocc.passes.show.printer import print_plan
from heterocc.passes.show.serialize import read_reproducer, write_reproducer

STAGES: tuple[Stage, ...] = get_args(Stage)
"""The stages of a compile in order; `--stop-after` names one."""


def parse_stage(text: str) -> Stage:
    """The stage named `text`. Raises UsageError (HC120)."""
    for stage in STAGES:
        if stage == text:
            return stage
    raise UsageError(
        f"there is no stage '{text}'",
        where=Hint(f"stop_after={text!r}", "--stop-after"),
        hint=f"stages: {', '.join(STAGES)}",
    )


def pipeline_of(options: CompileOptions, *, measures: bool = False) -> tuple[str, tuple[Pass, ...]]:
    """The name of the policy, or the text of `--passes`, and its passes. Raises UsageError (HC120, HC121).

    `measures` allows the policy `measured`, which begins with the plan of `merge`.
    """
    if options.passes is not None:
        require_no_objective(options.objective)
        return options.passes, parse_pipeline(options.passes)
    if measures and options.policy == MEASURED and options.objective == "latency":
        return MEASURED, policy_pipeline("merge")
    passes = policy_pipeline(options.policy, options.objective)
    name = options.policy if options.objective == "latency" else f"{options.policy} for {options.objective}"
    return name, passes


def require_no_objective(objective: str) -> None:
    """Raise UsageError (HC120) for an objective beside explicit passes, which have options of their own."""
    if require_objective(objective) != "latency":
        raise UsageError(
            "passes have their objective as an option",
            where=Hint(f"objective={objective!r}", "--objective"),
            hint="leave it out, and write "
            + Hint("passes=", "--passes ")
            + f"'manual,mincut{{objective={objective}}}'",
        )


@dataclass(slots=True)
class Trace:
    """Dumps, timings and the limit of a pipeline.

    `dump_dir` receives a file per pass and is created if missing. `pass_limit` is the maximum number of passes to run.
    `timings` collects the name and seconds of every pass that ran. Not thread-safe.
    """

    dump_dir: Path | None = None
    pass_limit: int | None = None
    timings: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.pass_limit is not None and self.pass_limit < 0:
            place = Hint(f"pass_limit={self.pass_limit}", f"--pass-limit {self.pass_limit}")
            raise UsageError("the number of passes is negative", where=place, hint="give 0 or more")

    def dump(self, name: str, text: str) -> Path | None:
        """Write `text` to `dump_dir`, if set, and return its path. Raises OutputFileError (HC111)."""
        return None if self.dump_dir is None else _write(self.dump_dir, name, text)


def run_pipeline(plan: Plan, passes: Sequence[Pass], trace: Trace | None = None, *, variant: str = "") -> Plan:
    """The plan after all passes, or after the first `trace.pass_limit` of them, within the rules of the devices.

    Passes run again without the nodes that break a device's rules for partitions, until none does (`passes/rules.py`).

    Writes `NN-<pass>.plan` after every pass, prefixed with the name of the variant if there is one. A HeteroccError of
    a pass propagates. For any other exception a reproducer is written to the dump directory, or to a new temporary
    directory, and PassError (HC901) is raised, which names it.
    Raises UsageError (HC120) if the whole pipeline ran and some nodes have no device.
    """
    trace = Trace() if trace is None else trace
    fastest = any(isinstance(p, MinCut) and p.objective in ("latency", "memory") for p in passes)
    placed = within_rules(plan, lambda start: _run_all(start, passes, trace, variant), fastest=fastest)
    if trace.pass_limit is None or trace.pass_limit >= len(passes):
        require_placed(placed)
    return placed


def _run_all(plan: Plan, passes: Sequence[Pass], trace: Trace, variant: str) -> Plan:
    prefix = f"{variant}-" if variant else ""
    limit = len(passes) if trace.pass_limit is None else trace.pass_limit
    for index, pass_ in enumerate(passes[:limit]):
        started = time.perf_counter()
        try:
            with _no_collections():
                after = pass_.run(plan)
        except HeteroccError:
            raise
        except Exception as error:
            pass_foreign(error)
            hint = _reproducer_hint(trace, f"{prefix}{index:02d}-{pass_.name}.repro.plan", plan, pass_)
            raise PassError(
                f"pass '{pass_.name}' failed: {type(error).__name__}: {error}", where=f"{plan.graph.name}", hint=hint
            ) from error
        trace.timings.append((pass_.name, time.perf_counter() - started))
        plan = after
        if trace.dump_dir is not None:
            trace.dump(f"{prefix}{index:02d}-{pass_.name}.plan", print_plan(plan))
    return plan


@contextmanager
def _no_collections() -> Iterator[None]:
    """Pause the search for garbage in cycles: a pass makes none, and the search takes a third of its time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def require_placed(plan: Plan) -> None:
    """Raise UsageError (HC120) if a node has no device, as after `--passes manual` or `--pass-limit 0`."""
    if any(part.device == UNPLACED for part in plan.partitions):
        left = [n for n in plan.graph.nodes if plan.device_of[n.name] == UNPLACED]
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise UsageError(
            f"no pass assigned a device to {left[0].op_type} '{left[0].label}'{more}",
            where=Hint("`passes`", "--passes"),
            hint="start the pipeline with greedy, and do not cut it with " + Hint("`pass_limit`", "--pass-limit"),
        )


def rerun(path: Path) -> Plan:
    """Run the pass of a reproducer on its plan again; exceptions of the pass propagate.

    Raises FileMissingError (HC101) or InputError (HC100) when the file cannot be read or is not a reproducer.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        pass_foreign(error)
        raise FileMissingError(f"cannot read the reproducer: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise InputError("the file is not a reproducer: it is not text", where=str(path)) from error
    try:
        plan, spec = read_reproducer(text)
    except (ValueError, KeyError, TypeError) as error:
        pass_foreign(error)
        raise InputError(
            f"the file is not a reproducer: {error}",
            where=str(path),
            hint="give a .repro.plan file, as a failed compile names it",
        ) from error
    (pass_,) = parse_pipeline(spec)
    return pass_.run(plan)


def _reproducer_hint(trace: Trace, name: str, plan: Plan, pass_: Pass) -> str:
    try:
        text = write_reproducer(plan, repr(pass_))
        folder = Path(tempfile.mkdtemp(prefix="heterocc-")) if trace.dump_dir is None else trace.dump_dir
        path = _write(folder, name, text)
    except Exception as error:
        pass_foreign(error)
        # The crash must be reported even if its reproducer cannot be written.
        return f"a heterocc bug; its reproducer could not be written: {error}"
    command = f"python -m heterocc.compiler.placement.run_passes {path}"
    return f"a heterocc bug; its input is in {path} (`{command}` runs it again)"


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    atomic_write(path, text)
    return path


if __name__ == "__main__":
    sys.stdout.write(printable(print_plan(rerun(Path(sys.argv[1])))))
