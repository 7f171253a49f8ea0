"""`heterocc explain` and `heterocc calibrate`: the reasons of a placement, and measured times for placements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from heterocc.compiler.cli.bundles import is_model
from heterocc.compiler.cli.console import ConsoleReporter
from heterocc.compiler.cli.options import (
    AFFINITY,
    COMPARE,
    DEVICE_FILE,
    DIM,
    JSON,
    LISTED,
    MODEL,
    OBJECTIVE,
    PASSES,
    POLICY,
    PROPERTY,
    QUIET,
    REPORT,
    SHAPE,
    compile_options,
    refuse_given,
)
from heterocc.compiler.cli.pages import write_page
from heterocc.compiler.cli.shared import add
from heterocc.runtime.cli.commands import Screen
from heterocc.runtime.cli.options import Option
from heterocc.runtime.cli.output import print_json, print_plain

_OF_MODELS = ("shape", "dim", "device_file", "property", "affinity", "policy", "objective", "passes", "annotate")
"""Parameters that a bundle, which is placed already, leaves without effect."""


EXPLAIN = (
    Option("path", "The ONNX model, or a bundle (.hcb).", Path, completes=".onnx .hcb"),
    Option(
        "--devices -d",
        "Devices by priority, as for compile (default CPU,ORT); of a bundle, the variant's name or devices.",
        completes="devices",
    ),
    Option("--node", "Only the nodes of this name or glob, with the cost of every other device."),
    SHAPE,
    DIM,
    DEVICE_FILE,
    PROPERTY,
    AFFINITY,
    POLICY,
    OBJECTIVE,
    PASSES,
    REPORT,
    COMPARE,
    Option("--annotate", "Write the model with device, partition, time and reason in each node's metadata.", Path),
    JSON,
    QUIET,
)
CALIBRATE = (
    MODEL,
    replace(LISTED, default="GPU,CPU"),
    SHAPE,
    DIM,
    DEVICE_FILE,
    PROPERTY,
    Option("--again", "Time what is known too.", bool),
    JSON,
    QUIET,
)


def explain(options: Any, _screen: Screen) -> int:
    """Explain a placement: why nodes are on their devices, what partitions and transfers cost, and other plans."""
    from heterocc.passes.explain.text import explanation_text, nodes_text

    reporter = ConsoleReporter(quiet=options.quiet or options.json)
    if is_model(options.path):
        from heterocc.compiler.commands.explaining import explain_model

        placed = compile_options(options, devices=options.devices or "CPU,ORT")
        found = explain_model(options.path, placed, reporter, annotate=options.annotate)
    else:
        refuse_given(
            options.given,
            _OF_MODELS,
            "on a bundle, which is placed already",
            where=str(options.path),
            hint="explain the model with it, or leave it out",
        )
        from heterocc.compiler.commands.explaining import explain_bundle
        from heterocc.passes.explain.other import read_other

        other = read_other(options.compare, options.report)
        found = explain_bundle(options.path, options.devices)
        if options.report is not None:
            write_page(options.path, options.report, found, other=other)
    named = None if options.node is None else found.named(options.node)
    if options.json:
        print_json(found.to_json(named))
    elif named is not None:
        print_plain(nodes_text(named).rstrip("\n"))
    else:
        print_plain(explanation_text(found, notes=not is_model(options.path)).rstrip("\n"))
    return 0


def calibrate(options: Any, _screen: Screen) -> int:
    """Time a model's nodes on each device, and the copies between devices: later placements use the times."""
    from heterocc.compiler.commands.calibrating import calibrate_model

    reporter = ConsoleReporter(quiet=options.quiet or options.json)
    found = calibrate_model(options.model, compile_options(options), reporter, again=options.again)
    if options.json:
        print_json({"devices": [device.to_json() for device in found]})
        return 0
    for device in found:
        print_plain(device.sentence())
    return 0


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    add(
        app,
        calibrate,
        CALIBRATE,
        "heterocc calibrate model.onnx -d OPENCL,CPU",
        "heterocc calibrate model.onnx --dim batch=8 --again",
        note="Times are kept in $HETEROCC_CACHE (default: heterocc in the XDG cache directory); "
        "HETEROCC_CALIBRATION=off ignores them.",
    )
    add(
        app,
        explain,
        EXPLAIN,
        "heterocc explain model.onnx -d GPU,CPU",
        "heterocc explain model.onnx -d GPU,CPU --node 'decoder/*'",
        "heterocc explain model.hcb --report out.html",
        "heterocc explain model.onnx -d CPU --report both.html --compare out.html",
    )
