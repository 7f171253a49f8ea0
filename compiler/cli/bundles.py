"""Commands on bundles: `heterocc run`, `bench`, `inspect`, `check`, `verify`, `serve`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from heterocc.artifacts.files.filetype import is_file
from heterocc.compiler.cli.console import ConsoleReporter, out
from heterocc.compiler.cli.options import COMPARE
from heterocc.compiler.cli.shared import add
from heterocc.compiler.cli.signing import print_signatures, signature_states
from heterocc.runtime.cli import commands, options
from heterocc.runtime.cli.commands import Screen
from heterocc.runtime.cli.options import BUNDLE, JSON, SEED, Option, replaced
from heterocc.runtime.cli.output import print_json, print_plain

BENCH = replaced(
    options.BENCH,
    Option("bundle", "The bundle (.hcb), or an ONNX model, compiled into the cache.", Path, completes=".hcb .onnx"),
    Option(
        "--against",
        "Peers to time in the same run, in turns: onnxruntime, openvino. With a bundle, the path of the ONNX model, "
        "alone for ONNX Runtime, or with a list of peers: model.onnx,openvino.",
        completes="peers",
    ),
    Option("--report", "With --profile: also write one HTML page on the model, with measured times.", Path),
    COMPARE,
)
INSPECT = replaced(
    options.INSPECT,
    Option("bundle", "The bundle (.hcb) or the ONNX model.", Path, completes=".hcb .onnx"),
    Option("--trusted-key", "Say whether this key signed the bundle. Repeatable.", many=True, metavar="FILE"),
)
VERIFY = (
    BUNDLE,
    Option(
        "model",
        "The ONNX model, to compare with ONNX Runtime on fresh inputs.",
        Path,
        completes=".onnx",
        required=False,
    ),
    options.INPUTS,
    options.DEVICES,
    options.THREADS,
    replace(SEED, help="Seed of the fresh inputs.", default=1),
    Option("--bisect", "Name the first partition and node that differ; requires the model.", bool),
    *options.SIGNATURES,
    JSON,
    Option("--quiet -q", "Hide progress.", bool),
)


def bench(options: Any, screen: Screen) -> int:
    """Time a bundle, or a model: latency, throughput, load, first run and memory.

    A model is compiled with the default options, for the devices of -d, once: its bundle is kept in the cache.
    Several sizes or numbers of threads are timed in every combination. Ctrl-C ends the measurement, and prints it.
    """
    from heterocc.passes.explain.other import read_other
    from heterocc.runtime.cli.actions import require_profile
    from heterocc.runtime.cli.peers import peers_of

    with ExitStack() as stack:
        model = options.bundle if is_model(options.bundle) else None
        peers = peers_of(options.against, model)
        require_profile("--report", options.report, profile=options.profile)
        other = read_other(options.compare, options.report)
        if model is not None:
            from heterocc.compiler.commands.cached_bundle import cached_bundle

            listed = None if options.devices is None else (options.devices,)
            progress = ConsoleReporter(quiet=options.json or options.csv)
            options.bundle, options.devices = stack.enter_context(cached_bundle(model, listed, progress)), None
        done = commands.timed(options, screen, peers)
        if done.profile is not None and options.report is not None:
            from heterocc.compiler.cli.pages import write_page
            from heterocc.compiler.commands.explaining import explain_bundle, measured_run

            found = explain_bundle(options.bundle, done.variant)
            write_page(options.bundle, options.report, found, measured_run(done.profile), other)
    commands.show_times(options, screen, done)
    return 0


def inspect(options: Any, _screen: Screen) -> int:
    """Show the contents of a bundle: model, variants, partitions, weights; --json prints the whole manifest.

    For an ONNX model: inputs and outputs with their dimensions, operators, weights, and the --shape that it needs.
    """
    if is_model(options.bundle):
        _inspect_model(options)
        return 0
    from heterocc.artifacts.reader import open_bundle
    from heterocc.runtime.cli.reports import print_bundle

    with open_bundle(options.bundle) as opened:
        signed = signature_states(opened, options.trusted_key)
        if options.json:
            manifest = opened.manifest.model_dump(mode="json")
            print_json({**manifest, "digest": opened.digest, "signatures": signed})
            return 0
        print_signatures(signed)
        print_bundle(opened, plan=options.plan, members=options.members, kernels=options.kernels)
    return 0


def is_model(path: Path) -> bool:
    """Return whether a file is an ONNX model, by its suffix or else its first bytes; a bundle begins as a zip file."""
    if path.suffix.lower() in (".onnx", ".hcb"):
        return path.suffix.lower() == ".onnx"
    if not is_file(path):
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) not in (b"PK\x03\x04", b"")
    except OSError:
        return False


def _inspect_model(options: Any) -> None:
    from heterocc.artifacts.errors import UsageError
    from heterocc.compiler.importer.model_summary import summarise

    for option in INSPECT:
        if option.name not in ("bundle", "json") and getattr(options, option.name):
            raise UsageError(
                f"{option.flags} applies to bundles, but the file is a model",
                where=str(options.bundle),
                hint="compile the model first",
            )
    summary = summarise(options.bundle)
    if options.json:
        print_json(summary.to_json())
        return
    for line in summary.lines():
        print_plain(line)


def verify(options: Any, screen: Screen) -> int:
    """Check a bundle's numbers: its golden vectors on this machine or, with the model, fresh inputs."""
    from heterocc.compiler.checking.verify import verify_bundle
    from heterocc.compiler.cli.tables import verify_table

    report = verify_bundle(
        options.bundle,
        options.model,
        inputs=tuple(options.inputs or ()),
        devices=options.devices,
        threads=options.threads,
        seed=options.seed,
        bisect=options.bisect,
        trusted_keys=options.trusted_key,
        require_signature=options.require_signature,
        reporter=ConsoleReporter(quiet=options.quiet or options.json),
    )
    screen.notes(report.notes, options.devices)
    if options.json:
        print_json(report.to_json())
    else:
        out.print(verify_table(report))
    return 0 if report.ok else 1


def register(app: typer.Typer) -> None:
    """Add the commands on bundles to the application."""
    add(
        app,
        commands.run,
        options.RUN,
        "heterocc run model.hcb --inputs in.npz --outputs out.npz",
        "heterocc run model.hcb -d AUTO",
    )
    add(app, inspect, INSPECT, "heterocc inspect model.hcb --plan", "heterocc inspect model.onnx")
    add(app, commands.check, options.CHECK, "heterocc check model.hcb --json", "heterocc check model.hcb -d AUTO")
    add(app, verify, VERIFY, "heterocc verify model.hcb model.onnx --bisect", "heterocc verify model.hcb -d AUTO")
    add(
        app,
        bench,
        BENCH,
        "heterocc bench model.onnx --against onnxruntime,openvino",
        "heterocc bench model.onnx --dim n=1,8,32 --threads 1,2 --stable 1",
        "heterocc bench model.hcb -d AUTO:VULKAN,CPU",
        "heterocc bench new.hcb --profile --report both.html --compare old.html",
    )


def register_serve(app: typer.Typer) -> None:
    """Add the service to the application."""
    add(
        app,
        commands.serve,
        options.SERVE,
        "heterocc serve model.hcb",
        "heterocc serve models/ --host 0.0.0.0 --queue 128",
        "heterocc serve models/ -d AUTO --tls-cert cert.pem --tls-key key.pem",
    )
