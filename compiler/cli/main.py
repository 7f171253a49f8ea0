"""Commands on models and devices: `heterocc compile`, `partition`, `query`, `devices`; see `bundles` for the others."""

from __future__ import annotations

import logging
import os
from typing import Annotated, Any

import typer

from heterocc.compiler.cli import bundles, explain, regression, signing
from heterocc.compiler.cli.console import ConsoleReporter, out, run
from heterocc.compiler.cli.help import examples
from heterocc.compiler.cli.options import COMPILE, JSON, PARTITION, QUERY, compile_options
from heterocc.compiler.cli.placement import print_placement
from heterocc.compiler.cli.shared import add
from heterocc.compiler.cli.usage import Commands
from heterocc.runtime.cli.commands import Screen
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


def compile(options: Any, _screen: Screen) -> int:
    """Compile a model into a bundle: place, lower, check against ONNX Runtime, pack."""
    # Before any work, because its passphrase may be asked for.
    key = None if options.sign is None else signing.private_key(options.sign)
    from heterocc.compiler.pipeline.compile import compile_model
    from heterocc.compiler.placement.run_passes import parse_stage

    done = compile_model(
        options.model,
        options.output,
        compile_options(
            options, stop_after=None if options.stop_after is None else parse_stage(options.stop_after), sign=key
        ),
        ConsoleReporter(quiet=options.quiet or options.json),
    )
    if options.json:
        print_json(done.to_json())
        return 0
    from heterocc.passes.show.printer import human_bytes

    if options.time_passes:
        _print_times(done.seconds, done.pass_seconds)
    for line in done.lines():
        print_plain(line)
    for text in done.remembered_lines():
        print_plain(text)
    if done.output is not None:
        variants = ", ".join(done.variants)
        print_plain(f"wrote {done.output} ({human_bytes(done.size)}; {variants})")
    return 0


def partition(options: Any, _screen: Screen) -> int:
    """Place the model's nodes and stop before lowering: print the summary, partitions, transfers and bytes."""
    if options.cost_table is not None:
        print_placement(options)
        return 0
    from heterocc.compiler.pipeline.compile import partition_model

    report = partition_model(
        options.model,
        compile_options(options),
        ConsoleReporter(quiet=options.quiet or options.json),
        write_affinity=options.write_affinity,
    )
    if options.json:
        from heterocc.passes.show.report import plan_report

        print_json({**report.to_json(), "plan": plan_report(report.plan)})
        return 0
    from heterocc.passes.show.printer import partition_table, print_plan

    if options.time_passes:
        _print_times(report.seconds, report.pass_seconds)
    print_plain(report.summary)
    print_plain("")
    print_plain((print_plan(report.plan) if options.plan else partition_table(report.plan)).rstrip("\n"))
    return 0


def query(options: Any, _screen: Screen) -> int:
    """Show which device supports which node, with a reason for each refusal."""
    from heterocc.compiler.pipeline.compile import query_devices

    result = query_devices(
        options.model, compile_options(options), ConsoleReporter(quiet=options.quiet or options.json)
    )
    if options.json:
        print_json(result.to_json())
    else:
        from heterocc.compiler.cli.tables import query_table

        out.print(query_table(result))
    return 0


def devices(options: Any, _screen: Screen) -> int:
    """List the devices of this machine, and the reasons why others are missing."""
    from heterocc.compiler.cli.device_report import device_report, device_table

    report = device_report()
    if options.json:
        print_json(report)
    else:
        out.print(device_table(report))
    return 0


def _print_times(stages: dict[str, float], passes: tuple[tuple[str, float], ...]) -> None:
    for name, seconds in stages.items():
        print_plain(f"{name:<12} {seconds * 1e3:10.1f} ms")
        if name == "partition":
            for spec, spent in passes:
                print_plain(f"  {spec:<24} {spent * 1e3:10.3f} ms")


bundles.register(app)
signing.register(app)
regression.register(app)
explain.register(app)
bundles.register_serve(app)
add(
    app,
    compile,
    COMPILE,
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
add(
    app,
    partition,
    PARTITION,
    "heterocc partition model.onnx -d GPU,CPU --plan",
    "heterocc partition model.onnx -d GPU,CPU --dot graphs --write-affinity place.toml",
    "heterocc partition model.onnx --cost-table T.json --policy optimal --json",
)
add(app, query, QUERY, "heterocc query model.onnx -d GPU,CPU", "heterocc query model.onnx -d OPENCL,CPU --json")
add(app, devices, (JSON,), "heterocc devices", "heterocc devices --json")


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
