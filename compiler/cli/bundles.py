"""Commands on bundles: `heterocc run`, `inspect`, `check`, `verify`; see `bench` for that."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterocc.compiler.cli import completion
from heterocc.compiler.cli.console import ConsoleReporter, errors, out
from heterocc.compiler.cli.help import Json, examples
from heterocc.compiler.cli.signing import RequireSignature, TrustedKeys, print_signatures, signature_states
from heterocc.runtime.cli.output import print_json, print_plain

Bundle = Annotated[
    Path, typer.Argument(help="The bundle (.hcb).", show_default=False, autocompletion=completion.files(".hcb"))
]
On = Annotated[
    str | None,
    typer.Option(
        "--devices",
        "-d",
        autocompletion=completion.devices,
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

Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        help="Shape of a seeded input: NAME=8,3,224,224, if the bundle allows several. Repeatable.",
        metavar="NAME=DIMS",
    ),
]
Dim = Annotated[
    list[str] | None,
    typer.Option(
        "--dim", help="Size of a dynamic dimension of seeded inputs: batch=8. Repeatable.", metavar="NAME=SIZE"
    ),
]


Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", help="With --profile: also write the profiled runs as a trace, for ui.perfetto.dev or Chrome."
    ),
]


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
    shape: Shape = None,
    dim: Dim = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print time per partition, kernel and transfer.")] = False,
    trace: Trace = None,
    trusted: TrustedKeys = None,
    require_signature: RequireSignature = False,
    json: Json = False,
) -> None:
    """Run a bundle once and write or summarise its outputs."""
    with errors(json):
        from heterocc.compiler.cli.tables import print_notes, rich_table
        from heterocc.runtime.cli import actions
        from heterocc.runtime.cli.reports import outputs_table
        from heterocc.runtime.files.shape_options import parse_dims, parse_shapes

        done = actions.run_bundle(
            actions.Opening(bundle, devices, threads, trusted, require_signature),
            actions.Feeding(tuple(inputs or ()), seed, parse_shapes(shape), parse_dims(dim)),
            outputs, profile=profile, trace=trace, show_notes=print_notes,
        )  # fmt: skip
        if json:
            print_json(done.report)
            return
        out.print(rich_table(outputs_table(done.outputs)))
        if done.profile is not None:
            print_plain(done.profile.to_table())
        if outputs is not None:
            print_plain(f"wrote {outputs}")


def inspect(
    bundle: Annotated[
        Path,
        typer.Argument(
            help="The bundle (.hcb) or the ONNX model.",
            show_default=False,
            autocompletion=completion.files(".hcb", ".onnx"),
        ),
    ],
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan of every variant.")] = False,
    members: Annotated[bool, typer.Option("--members", help="List the members with size and hash.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="List the kernels and the nodes they compute.")] = False,
    trusted: Annotated[
        list[str] | None,
        typer.Option("--trusted-key", help="Say whether this key signed the bundle. Repeatable.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Show the contents of a bundle: model, variants, partitions, weights; --json prints the whole manifest.

    For an ONNX model: inputs and outputs with their dimensions, operators, weights, and the --shape that it needs.
    """
    with errors(json):
        if is_model(bundle):
            asked = {"--plan": plan, "--members": members, "--kernels": kernels, "--trusted-key": bool(trusted)}
            _inspect_model(bundle, [option for option, given in asked.items() if given], json)
            return
        from heterocc.artifacts.reader import open_bundle
        from heterocc.runtime.cli import reports as cli_report

        with open_bundle(bundle) as opened:
            signed = signature_states(opened, trusted)
            if json:
                manifest = opened.manifest.model_dump(mode="json")
                print_json({**manifest, "digest": opened.digest, "signatures": signed})
                return
            print_signatures(signed)
            cli_report.print_bundle(opened, plan=plan, members=members, kernels=kernels)


def is_model(path: Path) -> bool:
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


def check(
    bundle: Bundle,
    devices: On = None,
    trusted: TrustedKeys = None,
    require_signature: RequireSignature = False,
    json: Json = False,
) -> None:
    """Show which variants of a bundle can run on this machine, with reasons if not, and check all hashes."""
    with errors(json):
        from heterocc.runtime.cli import reports as cli_report

        report = cli_report.check_bundle(bundle, devices, trusted, require_signature)
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
        typer.Argument(
            help="The ONNX model, to compare with ONNX Runtime on fresh inputs.",
            show_default=False,
            autocompletion=completion.files(".onnx"),
        ),
    ] = None,
    inputs: Inputs = None,
    devices: On = None,
    threads: Threads = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the fresh inputs.")] = 1,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Name the first partition and node that differ; requires the model.")
    ] = False,
    trusted: TrustedKeys = None,
    require_signature: RequireSignature = False,
    json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress.")] = False,
) -> None:
    """Check a bundle's numbers: its golden vectors on this machine or, with the model, fresh inputs."""
    with errors(json):
        from heterocc.compiler.checking.verify import verify_bundle
        from heterocc.compiler.cli.tables import print_notes, verify_table

        report = verify_bundle(
            bundle, model, inputs=tuple(inputs or ()), devices=devices, threads=threads, seed=seed, bisect=bisect,
            trusted_keys=trusted, require_signature=require_signature,
            reporter=ConsoleReporter(quiet=quiet or json),
        )  # fmt: skip
        print_notes(report.notes, devices)
        if json:
            print_json(report.to_json())
        else:
            out.print(verify_table(report))
        if not report.ok:
            raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add the commands on bundles to the application."""
    app.command(
        epilog=examples("heterocc run model.hcb --inputs in.npz --outputs out.npz", "heterocc run model.hcb -d AUTO")
    )(run)
    app.command(epilog=examples("heterocc inspect model.hcb --plan", "heterocc inspect model.onnx"))(inspect)
    app.command(epilog=examples("heterocc check model.hcb --json", "heterocc check model.hcb -d AUTO"))(check)
    app.command(epilog=examples("heterocc verify model.hcb model.onnx --bisect", "heterocc verify model.hcb -d AUTO"))(
        verify
    )
