"""`heterocc explain` and `heterocc calibrate`: the reasons of a placement, and measured times for placements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterocc.compiler.cli import completion
from heterocc.compiler.cli.bundles import is_model
from heterocc.compiler.cli.console import ConsoleReporter, errors
from heterocc.compiler.cli.help import examples
from heterocc.compiler.cli.options import (
    Affinity,
    Compare,
    DeviceFile,
    Devices,
    Dim,
    Json,
    Model,
    Objective,
    Passes,
    Policy,
    Property,
    Quiet,
    Report,
    Shape,
    compile_options,
    refuse_given,
)
from heterocc.compiler.cli.pages import write_page
from heterocc.runtime.cli.output import print_json, print_plain

_OF_MODELS = ("shape", "dim", "device_file", "property_", "affinity", "policy", "objective", "passes", "annotate")
"""Parameters that a bundle, which is placed already, leaves without effect."""


def explain(
    context: typer.Context,
    path: Annotated[
        Path,
        typer.Argument(
            help="The ONNX model, or a bundle (.hcb).",
            show_default=False,
            autocompletion=completion.files(".onnx", ".hcb"),
        ),
    ],
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            "-d",
            autocompletion=completion.devices,
            help="Devices by priority, as for compile (default CPU,ORT); of a bundle, the variant's name or devices.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--node", help="Only the nodes of this name or glob, with the cost of every other device."),
    ] = None,
    shape: Shape = None,
    dim: Dim = None,
    device_file: DeviceFile = None,
    property_: Property = None,
    affinity: Affinity = None,
    policy: Policy = "merge",
    objective: Objective = "latency",
    passes: Passes = None,
    report: Report = None,
    compare: Compare = None,
    annotate: Annotated[
        Path | None,
        typer.Option(
            "--annotate", help="Write the model with device, partition, time and reason in each node's metadata."
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Explain a placement: why nodes are on their devices, what partitions and transfers cost, and other plans."""
    with errors(json):
        from heterocc.passes.explain.text import explanation_text, nodes_text

        reporter = ConsoleReporter(quiet=quiet or json)
        if is_model(path):
            from heterocc.compiler.commands.explaining import explain_model

            options = compile_options(context, devices=devices or "CPU,ORT")
            found = explain_model(path, options, reporter, annotate=annotate)
        else:
            refuse_given(
                context,
                _OF_MODELS,
                "on a bundle, which is placed already",
                where=str(path),
                hint="explain the model with it, or leave it out",
            )
            from heterocc.compiler.commands.explaining import explain_bundle
            from heterocc.passes.explain.other import read_other

            other = read_other(compare, report)
            found = explain_bundle(path, devices)
            if report is not None:
                write_page(path, report, found, other=other)
        named = None if node is None else found.named(node)
        if json:
            print_json(found.to_json(named))
        elif named is not None:
            print_plain(nodes_text(named).rstrip("\n"))
        else:
            print_plain(explanation_text(found, notes=not is_model(path)).rstrip("\n"))


def calibrate(
    context: typer.Context,
    model: Model,
    devices: Devices = "GPU,CPU",
    shape: Shape = None,
    dim: Dim = None,
    device_file: DeviceFile = None,
    property_: Property = None,
    again: Annotated[bool, typer.Option("--again", help="Time what is known too.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time a model's nodes on each device, and the copies between devices: later placements use the times."""
    with errors(json):
        from heterocc.compiler.commands.calibrating import calibrate_model

        reporter = ConsoleReporter(quiet=quiet or json)
        found = calibrate_model(model, compile_options(context), reporter, again=again)
        if json:
            print_json({"devices": [device.to_json() for device in found]})
            return
        for device in found:
            print_plain(device.sentence())


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(
        epilog=examples(
            "heterocc calibrate model.onnx -d OPENCL,CPU",
            "heterocc calibrate model.onnx --dim batch=8 --again",
            note="Times are kept in $HETEROCC_CACHE (default: heterocc in the XDG cache directory); "
            "HETEROCC_CALIBRATION=off ignores them.",
        )
    )(calibrate)
    app.command(
        epilog=examples(
            "heterocc explain model.onnx -d GPU,CPU",
            "heterocc explain model.onnx -d GPU,CPU --node 'decoder/*'",
            "heterocc explain model.hcb --report out.html",
            "heterocc explain model.onnx -d CPU --report both.html --compare out.html",
        )
    )(explain)
