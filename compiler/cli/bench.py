"""`heterocc bench`: the times of a bundle, or of a model."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, get_args

import typer

from heterocc.compiler.cli import completion
from heterocc.compiler.cli.bundles import Inputs, On, Seed, Shape, Trace, is_model
from heterocc.compiler.cli.console import ConsoleReporter, errors, out
from heterocc.compiler.cli.help import Json, examples
from heterocc.compiler.cli.options import Compare
from heterocc.compiler.cli.signing import RequireSignature, TrustedKeys
from heterocc.runtime.cli.output import print_json, print_plain
from heterocc.runtime.requests.limits import Aim


def _known_hint(value: str | None) -> str | None:
    """Refuse an unknown aim as the parser refuses other bad values: before the bundle is opened."""
    if value is not None and value not in get_args(Aim):
        raise typer.BadParameter(f"'{value}' is not one of {', '.join(map(repr, get_args(Aim)))}")
    return value


def bench(
    bundle: Annotated[
        Path,
        typer.Argument(
            help="The bundle (.hcb), or an ONNX model, compiled into the cache.",
            show_default=False,
            autocompletion=completion.files(".hcb", ".onnx"),
        ),
    ],
    inputs: Inputs = None,
    devices: On = None,
    threads: Annotated[
        str | None,
        typer.Option(
            "--threads", "-t", metavar="N,…", help="CPU threads, or several numbers to time; default: all usable cores."
        ),
    ] = None,
    time: Annotated[float, typer.Option("--time", min=0.0, help="Duration of the measurement in seconds.")] = 5.0,
    stable: Annotated[
        float | None,
        typer.Option(
            "--stable",
            min=0.01,
            metavar="PERCENT",
            help="End earlier, when the median is known to so many percent (95 % confidence).",
        ),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", "-n", min=1, help="Number of runs, instead of --time.")
    ] = None,
    hint: Annotated[
        str | None,
        typer.Option(
            "--hint",
            callback=_known_hint,
            metavar=f"[{'|'.join(get_args(Aim))}]",
            help="latency: all cores for one request; throughput: one CPU thread for each of as many requests as there "
            "are cores, which may give fewer runs per second if a run takes microseconds. --threads and --requests "
            "override it.",
        ),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests",
            "-r",
            min=1,
            help="Requests at a time, each from a caller of its own; default: 1, but with --hint throughput or MULTI "
            "as many as the session suggests.",
        ),
    ] = None,
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Warm-up runs before the measurement.")] = 3,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            help="Peers to time in the same run, in turns: onnxruntime, openvino. With a bundle, the path of the ONNX "
            "model, alone for ONNX Runtime, or with a list of peers: model.onnx,openvino.",
        ),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print time per partition, kernel and transfer.")] = False,
    trace: Trace = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", help="With --profile: also write one HTML page on the model, with measured times."),
    ] = None,
    compare: Compare = None,
    percentiles: Annotated[
        str | None, typer.Option("--percentiles", metavar="P,…", help="Percentiles to show; default: 50,90,99.")
    ] = None,
    times: Annotated[
        Path | None, typer.Option("--times", help="Also write the time of every run to this file, as CSV.")
    ] = None,
    seed: Seed = 0,
    shape: Shape = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            "--dim",
            metavar="NAME=SIZES",
            help="Size of a dynamic dimension of seeded inputs, or several to time: n=1,8,32. Repeatable.",
        ),
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="N,…", help="Sizes of the dynamic dimension with which the inputs begin."),
    ] = None,
    trusted: TrustedKeys = None,
    require_signature: RequireSignature = False,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the result as CSV.")] = False,
) -> None:
    """Time a bundle, or a model: latency, throughput, load, first run and memory.

    A model is compiled with the default options, for the devices of -d, once: its bundle is kept in the cache.
    Several sizes or numbers of threads are timed in every combination. Ctrl-C ends the measurement, and prints it.
    """
    with errors(json), ExitStack() as stack:
        from heterocc.compiler.cli.tables import print_notes, rich_table
        from heterocc.passes.explain.other import read_other
        from heterocc.runtime.cli import actions
        from heterocc.runtime.cli.bench import Measure
        from heterocc.runtime.cli.peers import peers_of
        from heterocc.runtime.cli.sweep import parse_sweep
        from heterocc.runtime.cli.table import TextTable
        from heterocc.runtime.cli.timing import parse_shares, to_csv
        from heterocc.runtime.files.shape_options import parse_shapes

        sweep = parse_sweep(threads, dim, batch)
        measure = Measure(time, iterations, requests, warmup, stable, parse_shares(percentiles))
        model = bundle if is_model(bundle) else None
        peers = peers_of(against, model)
        actions.require_plain_csv(csv=csv, json=json, profile=profile)
        actions.require_profile("--report", report, profile=profile)
        actions.require_profile("--trace", trace, profile=profile)
        other = read_other(compare, report)
        if model is not None:
            from heterocc.compiler.commands.cached_bundle import cached_bundle

            listed = None if devices is None else (devices,)
            progress = ConsoleReporter(quiet=json or csv)
            bundle, devices = stack.enter_context(cached_bundle(model, listed, progress)), None
        done = actions.bench_bundle(
            actions.Opening(bundle, devices, None, trusted, require_signature, hint),  # type: ignore[arg-type]
            actions.Feeding(tuple(inputs or ()), seed, parse_shapes(shape)), measure,
            sweep=sweep, times=times, profile=profile, trace=trace, show_notes=print_notes,
            against=peers,
        )  # fmt: skip
        if done.profile is not None and report is not None:
            from heterocc.compiler.cli.pages import write_page
            from heterocc.compiler.commands.explaining import explain_bundle, measured_run

            write_page(bundle, report, explain_bundle(bundle, done.variant), measured_run(done.profile), other)
        if json:
            print_json(done.report)
            return
        if csv:
            print_plain(to_csv(done.results).rstrip("\n"))
            return
        for line in done.lines():
            if isinstance(line, TextTable):
                out.print(rich_table(line))
            else:
                print_plain(line)
        if done.profile is not None:
            print_plain(done.profile.to_table())


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        epilog=examples(
            "heterocc bench model.onnx --against onnxruntime,openvino",
            "heterocc bench model.onnx --dim n=1,8,32 --threads 1,2 --stable 1",
            "heterocc bench model.hcb -d AUTO:VULKAN,CPU",
            "heterocc bench new.hcb --profile --report both.html --compare old.html",
        )
    )(bench)
