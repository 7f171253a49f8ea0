"""Commands on bundles: `heterocc run`, `bench`, `inspect`, `check`, `verify`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from heterocc.compiler.cli.console import ConsoleReporter, errors, out, print_json, print_plain

Bundle = Annotated[Path, typer.Argument(help="The bundle (.hcb).", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
On = Annotated[
    str | None,
    typer.Option(
        "--devices",
        "-d",
        help="Variant to run, by its devices (CPU: the CPU-only one) or name; AUTO for the one on the most capable "
        "device, AUTO:VULKAN,CPU for the most capable of these, AUTO:-CPU without this; MULTI:GPU,CPU for requests on "
        "several at once; default: the first that can run.",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", "-t", min=1, help="CPU threads; default: all cores that the process may use.")
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--inputs",
        "-i",
        help="in.npz, NAME=file.npy, NAME=file.bin (raw little-endian bytes), or a directory of .npy files; a "
        "single-input model needs no NAME. Default: seeded inputs.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, help="Seed of the generated inputs, for inputs that are not given.")
]

PROFILED_RUNS = 5
"""Runs averaged by the profile of `bench`, after one warm-up run."""


def run(
    bundle: Bundle,
    inputs: Inputs = None,
    outputs: Annotated[
        Path | None,
        typer.Option(
            "--outputs", "-o", help="out.npz, or a directory for one .npy file per output, created if missing."
        ),
    ] = None,
    devices: On = None,
    threads: Threads = None,
    seed: Seed = 0,
    profile: Annotated[bool, typer.Option("--profile", help="Print time per partition, kernel and transfer.")] = False,
    json: Json = False,
) -> None:
    """Run a bundle once and write or summarise its outputs."""
    with errors(json):
        from heterocc.artifacts.files.reading import reading
        from heterocc.compiler.cli import reports as cli_report
        from heterocc.compiler.files import inputs as bundle_io
        from heterocc.compiler.files.outputs import require_place, write_outputs
        from heterocc.runtime import load

        with (
            reading({**bundle_io.input_files(tuple(inputs or ())), bundle: "the bundle"}),
            contextlib.ExitStack() as stack,
        ):
            if outputs is not None:
                require_place(outputs, ())
            session = stack.enter_context(load(bundle, devices, threads=threads, profile=profile))
            if outputs is not None:
                require_place(outputs, [spec.name for spec in session.outputs])
            cli_report.print_notes(session.notes, devices)
            feed = bundle_io.read_inputs(bundle, session, tuple(inputs or ()), seed)
            results = session.run(feed)
            if outputs is not None:
                write_outputs(outputs, results)
            if json:
                print_json(cli_report.outputs_json(session, results, profile))
                return
            out.print(cli_report.outputs_table(results))
            if profile:
                print_plain(session.profile().to_table())
            if outputs is not None:
                print_plain(f"wrote {outputs}")


def bench(
    bundle: Bundle,
    inputs: Inputs = None,
    devices: On = None,
    threads: Threads = None,
    time: Annotated[float, typer.Option("--time", min=0.0, help="Duration of the measurement in seconds.")] = 5.0,
    iterations: Annotated[
        int | None, typer.Option("--iterations", "-n", min=1, help="Number of runs, instead of --time.")
    ] = None,
    hint: Annotated[
        str | None,
        typer.Option(
            "--hint",
            help="latency: all cores for one request; throughput: one CPU thread for each of as many requests as there "
            "are cores. --threads and --requests override it.",
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
    model: Annotated[
        Path | None,
        typer.Option("--against", help="ONNX model: time ONNX Runtime on it too, interleaved in the same run."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print time per partition, kernel and transfer.")] = False,
    seed: Seed = 0,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the result as CSV.")] = False,
) -> None:
    """Time a bundle: latency min, median, p90, p99 and throughput."""
    with errors(json):
        from heterocc.artifacts.errors import UsageError
        from heterocc.compiler.cli import bench as bencher
        from heterocc.compiler.cli import reports as cli_report
        from heterocc.compiler.cli.tables import bench_table
        from heterocc.compiler.files import inputs as bundle_io
        from heterocc.runtime import load

        if csv and (json or profile):
            raise UsageError(f"--csv cannot be combined with {'--json' if json else '--profile'}", where="--csv")
        with load(bundle, devices, threads=threads, hint=hint) as session:  # type: ignore[arg-type]
            cli_report.print_notes(session.notes, devices)
            feed = bundle_io.read_inputs(bundle, session, tuple(inputs or ()), seed)
            count = bencher.request_count(session, requests, hint, devices)
            result = bencher.bench(
                session, feed, seconds=time, iterations=iterations, requests=count, warmup=warmup, against=model,
                threads=threads,
            )  # fmt: skip
        table = None
        if profile:
            # In a separate session: the hooks of the profile would slow down the measurement above.
            with load(bundle, devices, threads=threads, hint=hint, profile=True) as profiled:  # type: ignore[arg-type]
                profiled.run(feed)
                profiled.clear_profile()
                for _ in range(PROFILED_RUNS):
                    profiled.run(feed)
                table = profiled.profile()
        if json:
            data = {**result.to_json(), "notes": list(session.notes)}
            if table is not None:
                data["profile"] = table.to_json()
            print_json(data)
            return
        if csv:
            print_plain(result.to_csv().rstrip("\n"))
            return
        print_plain(result.describe())
        out.print(bench_table(result))
        if table is not None:
            print_plain(table.to_table())


def inspect(
    bundle: Annotated[Path, typer.Argument(help="The bundle (.hcb) or the ONNX model.", show_default=False)],
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan of every variant.")] = False,
    members: Annotated[bool, typer.Option("--members", help="List the members with size and hash.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="List the kernels and the nodes they compute.")] = False,
    json: Json = False,
) -> None:
    """Show the contents of a bundle: model, variants, partitions, weights; --json prints the whole manifest.

    For an ONNX model: inputs and outputs with their dimensions, operators, weights, and the --shape that it needs.
    """
    with errors(json):
        if _is_model(bundle):
            asked = {"--plan": plan, "--members": members, "--kernels": kernels}
            _inspect_model(bundle, [option for option, given in asked.items() if given], json)
            return
        from heterocc.artifacts.reader import open_bundle
        from heterocc.compiler.cli import reports as cli_report

        with open_bundle(bundle) as opened:
            if json:
                print_json(opened.manifest.model_dump(mode="json"))
                return
            cli_report.print_bundle(opened, plan=plan, members=members, kernels=kernels)


def _is_model(path: Path) -> bool:
    """Return whether a file is an ONNX model, by its suffix or else its first bytes; a bundle begins as a zip file."""
    if path.suffix.lower() in (".onnx", ".hcb"):
        return path.suffix.lower() == ".onnx"
    try:
        with path.open("rb") as file:
            return file.read(4) not in (b"PK\x03\x04", b"")
    except OSError:
        return False


def _inspect_model(path: Path, options: list[str], json: bool) -> None:
    from heterocc.artifacts.errors import UsageError
    from heterocc.compiler.importer.model_summary import summarise

    if options:
        raise UsageError(
            f"{options[0]} applies to bundles, but the file is a model", where=str(path), hint="compile the model first"
        )
    summary = summarise(path)
    if json:
        print_json(summary.to_json())
        return
    for line in summary.lines():
        print_plain(line)


def check(bundle: Bundle, devices: On = None, json: Json = False) -> None:
    """Show which variants of a bundle can run on this machine, with reasons if not, and check all hashes."""
    with errors(json):
        from heterocc.compiler.cli import reports as cli_report

        report = cli_report.check_bundle(bundle, devices)
        if json:
            print_json(report)
        else:
            cli_report.print_check(report)
        if not report["runs"]:
            raise typer.Exit(1)


def verify(
    bundle: Bundle,
    model: Annotated[
        Path | None,
        typer.Argument(help="The ONNX model, to compare with ONNX Runtime on fresh inputs.", show_default=False),
    ] = None,
    inputs: Inputs = None,
    devices: On = None,
    threads: Threads = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the fresh inputs.")] = 1,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Name the first partition and node that differ; requires the model.")
    ] = False,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress.")] = False,
) -> None:
    """Check a bundle's numbers: its golden vectors on this machine or, with the model, fresh inputs."""
    with errors(json):
        from heterocc.compiler.checking.verify import verify_bundle
        from heterocc.compiler.cli import reports as cli_report
        from heterocc.compiler.cli.tables import verify_table

        report = verify_bundle(
            bundle, model, inputs=tuple(inputs or ()), devices=devices, threads=threads, seed=seed, bisect=bisect,
            reporter=ConsoleReporter(quiet=quiet or json),
        )  # fmt: skip
        cli_report.print_notes(report.notes, devices)
        if json:
            print_json(report.to_json())
        else:
            out.print(verify_table(report))
        if not report.ok:
            raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add the commands on bundles to the application."""
    app.command(
        epilog="Examples:  heterocc run model.hcb --inputs in.npz --outputs out.npz   ·   "
        "heterocc run model.hcb -d AUTO"
    )(run)
    app.command(
        epilog="Examples:  heterocc bench model.hcb --time 10 --against model.onnx   ·   "
        "heterocc bench model.hcb -d AUTO:VULKAN,CPU"
    )(bench)
    app.command(epilog="Examples:  heterocc inspect model.hcb --plan   ·   heterocc inspect model.onnx")(inspect)
    app.command(epilog="Examples:  heterocc check model.hcb --json   ·   heterocc check model.hcb -d AUTO")(check)
    app.command(
        epilog="Examples:  heterocc verify model.hcb model.onnx --bisect   ·   heterocc verify model.hcb -d AUTO"
    )(verify)
