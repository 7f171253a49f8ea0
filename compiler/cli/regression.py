"""Commands for regression tests of compilers: `heterocc diff`, `reduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heterocc.compiler.cli import completion
from heterocc.compiler.cli.console import ConsoleReporter, errors
from heterocc.compiler.cli.help import Json, examples
from heterocc.runtime.cli.output import print_json, print_line


def diff(
    first: Annotated[
        Path,
        typer.Argument(
            help="The first bundle (.hcb), such as the last good one.", autocompletion=completion.files(".hcb")
        ),
    ],
    second: Annotated[Path, typer.Argument(help="The second bundle.", autocompletion=completion.files(".hcb"))],
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            help="The kinds of differences that end with exit status 1: versions, model, plan, kernels, code, weights, "
            "golden, other, size, estimate, time, all or none. Default: all but size and estimate.",
            metavar="KIND,…",
        ),
    ] = None,
    bench: Annotated[bool, typer.Option("--bench", help="Run and time both bundles, in turns.")] = False,
    time: Annotated[float, typer.Option("--time", min=0.0, help="Seconds of the measurement.")] = 5.0,
    slower: Annotated[
        float,
        typer.Option("--slower", min=1.0, help="Ratio of the median times above which the second bundle is slower."),
    ] = 1.1,
    devices: Annotated[
        str | None, typer.Option("--devices", "-d", help="Variant to time, as for `heterocc bench`.")
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="CPU threads of the runs.")] = None,
    json: Json = False,
) -> None:
    """Compare two bundles: plan, kernels, code, weights, versions, size, and with --bench the time of a run.

    Exit status: 0 without a difference of the kinds in --fail-on, 1 with one, 2 for bad usage. Without --bench no code
    of the bundles runs.
    """
    with errors(json):
        from heterocc.compiler.regression.bundle_diff import diff_bundles
        from heterocc.compiler.regression.differences import DEFAULT_KINDS, parse_kinds

        kinds = DEFAULT_KINDS if fail_on is None else parse_kinds(fail_on)
        found = diff_bundles(first, second)
        failed = list(found.failed(kinds))
        timed = _time(first, second, devices, threads, time) if bench else None
        ratio = None if timed is None else timed["ratio"]
        is_slower = ratio is not None and ratio > slower
        if is_slower and "time" in kinds:
            failed.append("time")
        if json:
            print_json({**found.to_json(), "time": timed, "failed": failed})
        else:
            for line in found.lines():
                print_line(line)
            if timed is not None:
                verdict = f"slower than {slower:g} times the first" if is_slower else f"not above {slower:g}"
                ours, theirs = (timed["median_ms"][n] for n in (0, 1))
                print_line(f"time      {ours:.3f} ms → {theirs:.3f} ms, ratio {ratio:.3f} ({verdict})")
            if failed:
                print_line(f"differs: {', '.join(failed)}")
        if failed:
            raise typer.Exit(1)


def reduce(
    model: Annotated[
        Path,
        typer.Argument(help="The ONNX model that fails.", show_default=False, autocompletion=completion.files(".onnx")),
    ],
    test: Annotated[
        str,
        typer.Option(
            "--test",
            "-t",
            help="Command that ends with exit status 0 while the model still fails in the way that is looked for. The "
            "model's path is appended, or replaces {}.",
            metavar="CMD",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The reduced model.", show_default="model name with .reduced.onnx"),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds after which a test counts as a no.")
    ] = 600.0,
    max_tests: Annotated[int | None, typer.Option("--max-tests", min=1, help="Stop after this many tests.")] = None,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress.")] = False,
) -> None:
    """Reduce a failing model to the fewest nodes that still fail.

    The smallest model so far is always in the output file: to stop early, interrupt the command.
    """
    with errors(json):
        from heterocc.compiler.regression.reduction.reduce import reduce_model

        report = reduce_model(
            model, test, output, timeout=timeout, max_tests=max_tests, reporter=ConsoleReporter(quiet=quiet or json)
        )
        if json:
            print_json(report.to_json())
            return
        print_line(f"before  {report.before}")
        print_line(f"after   {report.after}")
        end = "" if report.complete else "; not finished: --max-tests was reached"
        print_line(f"wrote {report.output} after {report.tests} tests{end}")


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
    app.command(
        epilog=examples(
            "heterocc diff good.hcb new.hcb",
            "heterocc diff good.hcb new.hcb --fail-on plan,golden",
            "heterocc diff good.hcb new.hcb --bench --slower 1.05",
        )
    )(diff)
    app.command(
        epilog=examples(
            "heterocc reduce model.onnx --test ./fails.sh",
            "heterocc reduce model.onnx --test 'python check.py {}' -o small.onnx --timeout 60",
        )
    )(reduce)
