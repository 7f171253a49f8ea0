"""The command `heterocc-run`: run, bench, check, inspect and serve bundles where the compiler is not installed."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from heterocc.artifacts.errors import HeteroccError, UsageError
from heterocc.artifacts.text.printable import printable
from heterocc.runtime.cli.output import (
    abandon_stdout,
    flush_stdout,
    internal_error,
    print_json,
    print_plain,
    stdout_errors,
)
from heterocc.runtime.cli.process import end_on_signals, prepare_streams, yield_to_signal
from heterocc.runtime.cli.serving import add_options, serve_options

if TYPE_CHECKING:
    from heterocc.runtime.cli.actions import Feeding, Opening

PROGRAM = "heterocc-run"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are HC120."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError for a command line at fault."""
        raise UsageError(message, where=self.prog, hint=f"`{self.prog} --help` shows the options")


def main() -> NoReturn:
    """Entry point of the command."""
    prepare_streams()
    end_on_signals(_show)
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit code; errors are printed, never raised."""
    as_json = "--json" in (arguments[: arguments.index("--")] if "--" in arguments else arguments)
    try:
        try:
            return _run(arguments)
        finally:
            flush_stdout()
    except HeteroccError as error:
        return _fail(error, as_json)
    except BrokenPipeError:
        # The reader of the output is gone (`| head`), which is not an error.
        abandon_stdout()
        return 0
    except Exception as error:
        if os.environ.get("HETEROCC_DEBUG"):
            raise
        return _fail(internal_error(error), as_json)


def _run(arguments: Sequence[str]) -> int:
    # The commands print a session's notes themselves; without a handler the runtime's log would repeat them.
    logging.getLogger("heterocc.runtime").addHandler(logging.NullHandler())
    try:
        with stdout_errors():  # help and the version are written by argparse
            options = _parser().parse_args(arguments)
    except SystemExit:
        return 0
    command: Callable[[argparse.Namespace], int] = options.command
    return command(options)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="Run bundles that heterocc compiled.", allow_abbrev=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, help_text: str, command: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(
            name, help=help_text, description=help_text, allow_abbrev=False
        )
        added.set_defaults(command=command)
        added.add_argument("bundle", type=Path, help="the bundle (.hcb)")
        added.add_argument("--json", action="store_true", help="print the result as JSON")
        return added

    run = add("run", "Run a bundle once and write or summarise its outputs.", _run_once)
    bench = add("bench", "Time a bundle: latency, throughput, load, first run and memory.", _bench)
    for command in (run, bench):
        command.add_argument(
            "-i",
            "--inputs",
            action="append",
            default=[],
            help="in.npz, NAME=file.npy, NAME=file.bin (raw little-endian bytes), or a directory of .npy files; a "
            "single-input model needs no NAME; default: seeded inputs",
        )
        command.add_argument("--seed", type=_natural, default=0, help="seed of the generated inputs")
        command.add_argument(
            "--shape",
            action="append",
            metavar="NAME=DIMS",
            help="shape of a seeded input, NAME=8,3,224,224, if the bundle allows several",
        )
        command.add_argument("--profile", action="store_true", help="print time per partition, kernel and transfer")
        command.add_argument(
            "--trace",
            type=Path,
            help="with --profile: also write the profiled runs as a trace, for ui.perfetto.dev or Chrome",
        )
    run.add_argument("-t", "--threads", type=_positive, help="CPU threads; default: all usable cores")
    run.add_argument(
        "--dim", action="append", metavar="NAME=SIZE", help="size of a dynamic dimension of seeded inputs: batch=8"
    )
    run.add_argument(
        "-o", "--outputs", type=Path, help="out.npz, or a directory for one .npy file per output, created if missing"
    )
    bench.add_argument(
        "-t", "--threads", metavar="N,…", help="CPU threads, or several numbers to time; default: all usable cores"
    )
    bench.add_argument(
        "--dim",
        action="append",
        metavar="NAME=SIZES",
        help="size of a dynamic dimension of seeded inputs, or several to time: n=1,8,32",
    )
    bench.add_argument("--batch", metavar="N,…", help="sizes of the dynamic dimension with which the inputs begin")
    bench.add_argument(
        "--stable",
        type=_percent,
        metavar="PERCENT",
        help="end earlier, when the median is known to so many percent (95 %% confidence)",
    )
    bench.add_argument("--percentiles", metavar="P,…", help="percentiles to show; default: 50,90,99")
    bench.add_argument("--times", type=Path, help="also write the time of every run to this file, as CSV")
    bench.add_argument("--time", type=_seconds, default=5.0, help="duration of the measurement in seconds")
    bench.add_argument("-n", "--iterations", type=_positive, help="number of runs, instead of --time")
    bench.add_argument(
        "--hint",
        choices=("latency", "throughput"),
        help="latency: all cores for one request; throughput: one CPU thread for each of as many requests as there "
        "are cores, which may give fewer runs per second if a run takes microseconds; --threads and --requests "
        "override it",
    )
    bench.add_argument(
        "-r",
        "--requests",
        type=_positive,
        help="requests at a time, each from a caller of its own; default: 1, but with --hint throughput or MULTI as "
        "many as the session suggests",
    )
    bench.add_argument("--csv", action="store_true", help="print the result as CSV")
    bench.add_argument("--warmup", type=_natural, default=3, help="warm-up runs before the measurement")
    check = add("check", "Show which variants can run on this machine, with reasons if not; check all hashes.", _check)
    for command in (run, bench, check):
        command.add_argument(
            "-d",
            "--devices",
            help="variant to run, by its devices (CPU: the CPU-only one) or name; AUTO for the one on the most capable "
            "device, AUTO:-CPU without this; MULTI:GPU,CPU for requests on several at once; default: the first that "
            "can run",
        )
        command.add_argument(
            "--trusted-key",
            action="append",
            metavar="FILE",
            help="refuse the bundle unless this key signed it: a file of public keys, a directory of .pub files, or "
            "ed25519:…; one of several suffices",
        )
        command.add_argument(
            "--require-signature",
            action="store_true",
            help="refuse a bundle that no key of --trusted-key, or else of $HETEROCC_TRUSTED_KEYS, signed",
        )
    inspect = add("inspect", "Show the contents of a bundle: model, variants, partitions, weights.", _inspect)
    inspect.add_argument("--plan", action="store_true", help="print the plan of every variant")
    inspect.add_argument("--members", action="store_true", help="list the members with size and hash")
    inspect.add_argument("--kernels", action="store_true", help="list the kernels and the nodes they compute")
    serve = commands.add_parser(
        "serve",
        help="Answer the Open Inference Protocol v2 over HTTP and gRPC.",
        description="Answer the Open Inference Protocol v2 over HTTP and gRPC. It needs the extra `serve`.",
        allow_abbrev=False,
    )
    add_options(serve)
    serve.set_defaults(command=serve_options)
    return parser


class _Version(argparse.Action):
    """Print the version, which is read only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and exit."""
        from heterocc.artifacts.version import __version__

        print_plain(f"{PROGRAM} {__version__}")
        parser.exit()


def _opening(options: argparse.Namespace) -> Opening:
    from heterocc.runtime.cli.actions import Opening

    return Opening(options.bundle, options.devices, options.threads, options.trusted_key, options.require_signature)


def _feeding(options: argparse.Namespace) -> Feeding:
    from heterocc.runtime.cli.actions import Feeding
    from heterocc.runtime.files.shape_options import parse_dims, parse_shapes

    return Feeding(options.inputs, options.seed, parse_shapes(options.shape), parse_dims(options.dim))


def _run_once(options: argparse.Namespace) -> int:
    from heterocc.runtime.cli.actions import run_bundle
    from heterocc.runtime.cli.reports import outputs_table

    done = run_bundle(
        _opening(options),
        _feeding(options),
        options.outputs,
        profile=options.profile,
        trace=options.trace,
        show_notes=_show_notes,
    )
    if options.json:
        print_json(done.report)
        return 0
    print_plain(outputs_table(done.outputs).text())
    if done.profile is not None:
        print_plain(done.profile.to_table())
    if options.outputs is not None:
        print_plain(f"wrote {options.outputs}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    from heterocc.runtime.cli.actions import Feeding, Opening, bench_bundle, require_plain_csv
    from heterocc.runtime.cli.bench import Measure
    from heterocc.runtime.cli.sweep import parse_sweep
    from heterocc.runtime.cli.timing import parse_shares, to_csv
    from heterocc.runtime.files.shape_options import parse_shapes

    require_plain_csv(csv=options.csv, json=options.json, profile=options.profile)
    sweep = parse_sweep(options.threads, options.dim, options.batch)
    shares = parse_shares(options.percentiles)
    measure = Measure(options.time, options.iterations, options.requests, options.warmup, options.stable, shares)
    done = bench_bundle(
        Opening(
            options.bundle, options.devices, None, options.trusted_key, options.require_signature, options.hint
        ),
        Feeding(options.inputs, options.seed, parse_shapes(options.shape)),
        measure,
        sweep=sweep,
        times=options.times,
        profile=options.profile,
        trace=options.trace,
        show_notes=_show_notes,
    )  # fmt: skip
    if options.json:
        print_json(done.report)
        return 0
    if options.csv:
        print_plain(to_csv(done.results).rstrip("\n"))
        return 0
    for line in done.lines():
        print_plain(line if isinstance(line, str) else line.text())
    if done.profile is not None:
        print_plain(done.profile.to_table())
    return 0


def _check(options: argparse.Namespace) -> int:
    from heterocc.runtime.cli.reports import check_bundle, print_check

    report = check_bundle(options.bundle, options.devices, options.trusted_key, options.require_signature)
    if options.json:
        print_json(report)
    else:
        print_check(report)
    return 0 if report["runs"] else 1


def _inspect(options: argparse.Namespace) -> int:
    from heterocc.artifacts.reader import open_bundle
    from heterocc.runtime.cli.reports import print_bundle

    with open_bundle(options.bundle) as opened:
        if options.json:
            print_json(opened.manifest.model_dump(mode="json"))
        else:
            print_bundle(opened, plan=options.plan, members=options.members, kernels=options.kernels)
    return 0


def _show_notes(notes: Sequence[str], devices: str | None) -> None:
    from heterocc.runtime.cli.reports import notes_to_show

    for note in notes_to_show(notes, devices):
        _show(f"note: {note}")


def _show(text: str) -> None:
    """Print a line on standard error, which may be closed."""
    with contextlib.suppress(OSError, ValueError):
        print(printable(text), file=sys.stderr, flush=True)


def _fail(error: HeteroccError, as_json: bool) -> int:
    yield_to_signal()
    if as_json:
        with contextlib.suppress(HeteroccError):  # standard output may be what failed
            print_json({"error": error.to_json()})
            flush_stdout()
    _show(error.command_text())
    return error.exit_code


def _positive(text: str) -> int:
    return _whole(text, 1)


def _natural(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or int(text) < least:
        raise argparse.ArgumentTypeError(f"'{text}' is not an integer of at least {least}")
    return int(text)


def _percent(text: str) -> float:
    value = _seconds(text)
    if not 0.01 <= value <= 100:
        raise argparse.ArgumentTypeError(f"'{text}' is not a percentage of at least 0.01")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return value


if __name__ == "__main__":
    main()
