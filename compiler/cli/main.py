"""Commands on models and devices: `heterocc compile`, `partition`, `query`, `devices`; see `bundles` for the others."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from heterocc.compiler.cli import bundles as cli_bundle
from heterocc.compiler.cli import completion, regression, signing
from heterocc.compiler.cli import explain as cli_explain
from heterocc.compiler.cli.console import ConsoleReporter, errors, out, run
from heterocc.compiler.cli.help import CHECKS, DEVICES, INSIGHT, examples
from heterocc.compiler.cli.options import (
    Affinity,
    Compare,
    Config,
    CostTable,
    CpuTargets,
    DeviceFile,
    Devices,
    Dim,
    DotDir,
    DumpDir,
    HintedSizes,
    Json,
    Model,
    Objective,
    Passes,
    PassLimit,
    Policy,
    Property,
    Quiet,
    Report,
    Shape,
    Shapes,
    TimePasses,
    Variant,
    Weights,
    WeightsKeep,
    compile_options,
)
from heterocc.compiler.cli.placement import print_placement
from heterocc.compiler.cli.usage import Commands
from heterocc.runtime.cli.output import print_json, print_plain

app = typer.Typer(
    name="heterocc",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compile ONNX models ahead of time for several devices of one machine, and run the bundles.",
    epilog=examples(
        "heterocc compile model.onnx --devices GPU,CPU", "heterocc run model.hcb", "heterocc bench model.hcb"
    ),
)
cli_bundle.register(app)
signing.register(app)
regression.register(app)
cli_explain.register(app)
cli_bundle.register_serve(app)


@app.command(
    epilog=examples(
        "heterocc compile model.onnx",
        "heterocc compile model.onnx -d GPU,CPU -o model.hcb",
        "heterocc compile det.onnx --shape x=1,3,192,320 -d OPENCL,CPU,ORT --dump-dir dump",
        "heterocc compile model.onnx --hint batch=1,8",
        "heterocc compile model.onnx --weights int4:block=32 --weights-keep 'lm_head*'",
        "heterocc compile model.onnx -d CUDA,CPU --variant VULKAN,CPU -p VULKAN.precision=f16",
        note="Compiled kernels are kept in $HETEROCC_CACHE (default: heterocc in the XDG cache directory), at most "
        "$HETEROCC_CACHE_MB MiB of them (default 512; 0 keeps none). HETEROCC_CACHE=off disables all caches; to clear "
        "them, delete the directory.",
    )
)
def compile(
    context: typer.Context,
    model: Model,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The bundle to write.", show_default="model name with .hcb")
    ] = None,
    devices: Devices = "CPU,ORT",
    dim: Dim = None,
    hint: HintedSizes = None,
    report: Report = None,
    compare: Compare = None,
    shape: Shape = None,
    shapes: Shapes = None,
    variant: Variant = None,
    device_file: DeviceFile = None,
    property_: Property = None,
    config: Config = None,
    fast_math: Annotated[
        bool,
        typer.Option(
            "--fast-math",
            help="Faster 3x3 convolutions on CPUs, with about three times the rounding error: as CPU.fast_math=on.",
            rich_help_panel=DEVICES,
        ),
    ] = False,
    cpu_targets: CpuTargets = None,
    weights: Weights = None,
    weights_keep: WeightsKeep = None,
    affinity: Affinity = None,
    policy: Policy = "merge",
    objective: Objective = "latency",
    passes: Passes = None,
    no_check: Annotated[
        bool,
        typer.Option("--no-check", help="Do not compare the partitions with ONNX Runtime.", rich_help_panel=CHECKS),
    ] = False,
    recheck: Annotated[
        bool,
        typer.Option(
            "--recheck",
            help="Compare again what an earlier compile of the same model found right.",
            rich_help_panel=CHECKS,
        ),
    ] = False,
    no_measure: Annotated[
        bool,
        typer.Option(
            "--no-measure",
            help="Do not time kernels and plans on this machine to choose between them.",
            rich_help_panel=CHECKS,
        ),
    ] = False,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            help="Inputs (.npz) for the check, instead of seeded ones.",
            rich_help_panel=CHECKS,
            autocompletion=completion.files(".npz"),
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", min=0, help="Seed of the inputs for the check and the golden vectors.", rich_help_panel=CHECKS
        ),
    ] = 0,
    no_cpu_variant: Annotated[
        bool,
        typer.Option("--no-cpu-variant", help="Do not add a CPU-only variant to the bundle.", rich_help_panel=DEVICES),
    ] = False,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", help="Sign the bundle with this private key, as `heterocc keygen` writes it."),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    dot: DotDir = None,
    dump_dir: DumpDir = None,
    stop_after: Annotated[
        str | None,
        typer.Option(
            "--stop-after",
            help="Stop after a stage: import, partition, lower or pack.",
            rich_help_panel=INSIGHT,
            autocompletion=completion.stages,
        ),
    ] = None,
    pass_limit: PassLimit = None,
    time_passes: TimePasses = False,
) -> None:
    """Compile a model into a bundle: place, lower, check against ONNX Runtime, pack."""
    with errors(json):
        # Before any work, because its passphrase may be asked for.
        key = None if sign is None else signing.private_key(sign)
        from heterocc.compiler.pipeline.compile import compile_model
        from heterocc.compiler.placement.run_passes import parse_stage

        done = compile_model(
            model,
            output,
            compile_options(context, stop_after=None if stop_after is None else parse_stage(stop_after), sign=key),
            ConsoleReporter(quiet=quiet or json),
        )
        if json:
            print_json(done.to_json())
            return
        from heterocc.passes.show.printer import human_bytes

        if time_passes:
            _print_times(done.seconds, done.pass_seconds)
        for line in done.lines():
            print_plain(line)
        for text in done.remembered_lines():
            print_plain(text)
        if done.output is not None:
            variants = ", ".join(done.variants)
            print_plain(f"wrote {done.output} ({human_bytes(done.size)}; {variants})")


@app.command(
    epilog=examples(
        "heterocc partition model.onnx -d GPU,CPU --plan",
        "heterocc partition model.onnx -d GPU,CPU --dot graphs --write-affinity place.toml",
        "heterocc partition model.onnx --cost-table T.json --policy optimal --json",
    )
)
def partition(
    context: typer.Context,
    model: Model,
    devices: Devices = "CPU,ORT",
    shape: Shape = None,
    dim: Dim = None,
    device_file: DeviceFile = None,
    property_: Property = None,
    config: Config = None,
    affinity: Affinity = None,
    policy: Policy = "merge",
    passes: Passes = None,
    dot: DotDir = None,
    write_affinity: Annotated[
        Path | None,
        typer.Option(
            "--write-affinity", help="Write the placement as an affinity file, to edit and give to --affinity."
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Also print the nodes and values of every partition.")] = False,
    dump_dir: DumpDir = None,
    pass_limit: PassLimit = None,
    time_passes: TimePasses = False,
    cost_table: CostTable = None,
    objective: Objective = "latency",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Place the model's nodes and stop before lowering: print the summary, partitions, transfers and bytes."""
    with errors(json):
        if cost_table is not None:
            print_placement(context, model, cost_table)
            return
        from heterocc.compiler.pipeline.compile import partition_model

        report = partition_model(
            model, compile_options(context), ConsoleReporter(quiet=quiet or json), write_affinity=write_affinity
        )
        if json:
            from heterocc.passes.show.report import plan_report

            print_json({**report.to_json(), "plan": plan_report(report.plan)})
            return
        from heterocc.passes.show.printer import partition_table, print_plan

        if time_passes:
            _print_times(report.seconds, report.pass_seconds)
        print_plain(report.summary)
        print_plain("")
        print_plain((print_plan(report.plan) if plan else partition_table(report.plan)).rstrip("\n"))


@app.command(epilog=examples("heterocc query model.onnx -d GPU,CPU", "heterocc query model.onnx -d OPENCL,CPU --json"))
def query(
    context: typer.Context,
    model: Model,
    devices: Devices = "CPU,ORT",
    shape: Shape = None,
    dim: Dim = None,
    device_file: DeviceFile = None,
    property_: Property = None,
    config: Config = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show which device supports which node, with a reason for each refusal."""
    with errors(json):
        from heterocc.compiler.pipeline.compile import query_devices

        result = query_devices(model, compile_options(context), ConsoleReporter(quiet=quiet or json))
        if json:
            print_json(result.to_json())
        else:
            from heterocc.compiler.cli.tables import query_table

            out.print(query_table(result))


@app.command(epilog=examples("heterocc devices", "heterocc devices --json"))
def devices(json: Json = False) -> None:
    """List the devices of this machine, and the reasons why others are missing."""
    with errors(json):
        from heterocc.compiler.cli.device_report import device_report, device_table

        report = device_report()
        if json:
            print_json(report)
        else:
            out.print(device_table(report))


def _print_times(stages: dict[str, float], passes: tuple[tuple[str, float], ...]) -> None:
    for name, seconds in stages.items():
        print_plain(f"{name:<12} {seconds * 1e3:10.1f} ms")
        if name == "partition":
            for spec, spent in passes:
                print_plain(f"  {spec:<24} {spent * 1e3:10.3f} ms")


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print heterocc's version and exit.")] = False,
) -> None:
    """Options of heterocc itself."""
    # The commands print a session's notes themselves; without a handler the runtime's log would repeat them.
    logging.getLogger("heterocc.runtime").addHandler(logging.NullHandler())
    # The process is not shared, so ONNX Runtime's default logger is silenced too, except when debugging.
    debug = bool(os.environ.get("HETEROCC_DEBUG"))
    logging.getLogger("heterocc.onnxruntime").setLevel(logging.WARNING if debug else logging.CRITICAL)
    if version:
        from heterocc.artifacts.version import __version__

        print_plain(f"heterocc {__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point of the `heterocc` command."""
    run(app)


if __name__ == "__main__":
    main()
