"""Commands for regression tests of compilers: `heterocc diff`, `reduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from heterocc.compiler.cli.console import ConsoleReporter
from heterocc.compiler.cli.shared import add
from heterocc.runtime.cli.commands import Screen
from heterocc.runtime.cli.options import JSON, Option
from heterocc.runtime.cli.output import print_json, print_line

DIFF = (
    Option("first", "The first bundle (.hcb), such as the last good one.", Path, completes=".hcb"),
    Option("second", "The second bundle.", Path, completes=".hcb"),
    Option(
        "--fail-on",
        "The kinds of differences that end with exit status 1: versions, model, plan, kernels, code, weights, "
        "golden, other, size, estimate, time, all or none. Default: all but size and estimate.",
        metavar="KIND,…",
    ),
    Option("--bench", "Run and time both bundles, in turns.", bool),
    Option("--time", "Seconds of the measurement.", float, default=5.0, least=0.0),
    Option(
        "--slower",
        "Ratio of the median times above which the second bundle is slower.",
        float,
        default=1.1,
        least=1,
    ),
    Option("--devices -d", "Variant to time, as for `heterocc bench`."),
    Option("--threads -t", "CPU threads of the runs.", int, least=1),
    JSON,
)
REDUCE = (
    Option("model", "The ONNX model that fails.", Path, completes=".onnx"),
    Option(
        "--test -t",
        "Command that ends with exit status 0 while the model still fails in the way that is looked for. The "
        "model's path is appended, or replaces {}.",
        metavar="CMD",
        required=True,
    ),
    Option("--output -o", "The reduced model.", Path, shown_default="model name with .reduced.onnx"),
    Option("--timeout", "Seconds after which a test counts as a no.", float, default=600.0, least=0.1),
    Option("--max-tests", "Stop after this many tests.", int, least=1),
    JSON,
    Option("--quiet -q", "Hide progress.", bool),
)


def diff(options: Any, _screen: Screen) -> int:
    """Compare two bundles: plan, kernels, code, weights, versions, size, and with --bench the time of a run.

    Exit status: 0 without a difference of the kinds in --fail-on, 1 with one, 2 for bad usage. Without --bench no code
    of the bundles runs.
    """
    from heterocc.compiler.regression.bundle_diff import diff_bundles
    from heterocc.compiler.regression.differences import DEFAULT_KINDS, parse_kinds

    kinds = DEFAULT_KINDS if options.fail_on is None else parse_kinds(options.fail_on)
    found = diff_bundles(options.first, options.second)
    failed = list(found.failed(kinds))
    timed = None
    if options.bench:
        timed = _time(options.first, options.second, options.devices, options.threads, options.time)
    ratio = None if timed is None else timed["ratio"]
    is_slower = ratio is not None and ratio > options.slower
    if is_slower and "time" in kinds:
        failed.append("time")
    if options.json:
        print_json({**found.to_json(), "time": timed, "failed": failed})
    else:
        for line in found.lines():
            print_line(line)
        if timed is not None:
            verdict = (
                f"slower than {options.slower:g} times the first" if is_slower else f"not above {options.slower:g}"
            )
            ours, theirs = (timed["median_ms"][n] for n in (0, 1))
            print_line(f"time      {ours:.3f} ms → {theirs:.3f} ms, ratio {ratio:.3f} ({verdict})")
        if failed:
            print_line(f"differs: {', '.join(failed)}")
    return 1 if failed else 0


def reduce(options: Any, _screen: Screen) -> int:
    """Reduce a failing model to the fewest nodes that still fail.

    The smallest model so far is always in the output file: to stop early, interrupt the command.
    """
    from heterocc.compiler.regression.reduction.reduce import reduce_model

    report = reduce_model(
        options.model,
        options.test,
        options.output,
        timeout=options.timeout,
        max_tests=options.max_tests,
        reporter=ConsoleReporter(quiet=options.quiet or options.json),
    )
    if options.json:
        print_json(report.to_json())
        return 0
    print_line(f"before  {report.before}")
    print_line(f"after   {report.after}")
    end = "" if report.complete else "; not finished: --max-tests was reached"
    print_line(f"wrote {report.output} after {report.tests} tests{end}")
    return 0


def _time(first: Path, second: Path, devices: str | None, threads: int | None, seconds: float) -> dict[str, Any]:
    """Median times of one run of each bundle in milliseconds, measured in turns, and their ratio."""
    from heterocc.runtime import load
    from heterocc.runtime.cli.bench import interleave
    from heterocc.runtime.files.inputs import read_inputs

    with load(first, devices, threads=threads) as one, load(second, devices, threads=threads) as other:
        runners: list[tuple[str, Any]] = []
        for path, session in ((first, one), (second, other)):
            feed = read_inputs(path, session, (), 0)

            def run(session: Any = session, feed: Any = feed) -> object:
                return session.run(feed)

            for _ in range(3):
                run()
            runners.append((str(path), run))
        timings = interleave(runners, seconds, None)
    medians = [timing.percentile(50) for timing in timings]
    return {
        "median_ms": [round(m, 4) for m in medians],
        "runs": [len(timing.latencies) for timing in timings],
        "ratio": round(medians[1] / medians[0], 4) if medians[0] else None,
    }


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    add(
        app,
        diff,
        DIFF,
        "heterocc diff good.hcb new.hcb",
        "heterocc diff good.hcb new.hcb --fail-on plan,golden",
        "heterocc diff good.hcb new.hcb --bench --slower 1.05",
    )
    add(
        app,
        reduce,
        REDUCE,
        "heterocc reduce model.onnx --test ./fails.sh",
        "heterocc reduce model.onnx --test 'python check.py {}' -o small.onnx --timeout 60",
    )
