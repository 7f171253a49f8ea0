"""The commands on bundles, which `heterocc` and `heterocc-run` share: each takes the values of its options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heterocc.runtime.cli.output import print_json, print_plain

if TYPE_CHECKING:  # a command loads only what it needs
    from heterocc.runtime.cli.actions import BenchReport, Opening
    from heterocc.runtime.cli.bench import Peer
    from heterocc.runtime.cli.table import TextTable


@dataclass(frozen=True, slots=True)
class Screen:
    """How a command shows tables on standard output, and the notes of a session on standard error."""

    table: Callable[[TextTable], None]
    note: Callable[[str], None]

    def notes(self, notes: Sequence[str], devices: str | None) -> None:
        """Show a session's notes, except details, if there are several or the variant was chosen by AUTO."""
        from heterocc.runtime.cli.reports import notes_to_show

        for note in notes_to_show(notes, devices):
            self.note(note)


def run(options: Any, screen: Screen) -> int:
    """Run a bundle once and write or summarise its outputs."""
    from heterocc.runtime.cli.actions import Feeding, run_bundle
    from heterocc.runtime.cli.reports import outputs_table
    from heterocc.runtime.files.shape_options import parse_dims, parse_shapes

    done = run_bundle(
        _opening(options, options.threads),
        Feeding(tuple(options.inputs or ()), options.seed, parse_shapes(options.shape), parse_dims(options.dim)),
        options.outputs,
        profile=options.profile,
        trace=options.trace,
        show_notes=screen.notes,
    )
    if options.json:
        print_json(done.report)
        return 0
    screen.table(outputs_table(done.outputs))
    if done.profile is not None:
        print_plain(done.profile.to_table())
    if options.outputs is not None:
        print_plain(f"wrote {options.outputs}")
    return 0


def bench(options: Any, screen: Screen) -> int:
    """Time a bundle: latency, throughput, load, first run and memory."""
    show_times(options, screen, timed(options, screen))
    return 0


def timed(options: Any, screen: Screen, against: Sequence[Peer] = ()) -> BenchReport:
    """Time a bundle, and peers in turns with it."""
    from heterocc.runtime.cli.actions import Feeding, bench_bundle, require_plain_csv
    from heterocc.runtime.cli.bench import Measure
    from heterocc.runtime.cli.sweep import parse_sweep
    from heterocc.runtime.cli.timing import parse_shares
    from heterocc.runtime.files.shape_options import parse_shapes

    require_plain_csv(csv=options.csv, json=options.json, profile=options.profile)
    sweep = parse_sweep(options.threads, options.dim, options.batch)
    shares = parse_shares(options.percentiles)
    return bench_bundle(
        _opening(options, None, options.hint),
        Feeding(tuple(options.inputs or ()), options.seed, parse_shapes(options.shape)),
        Measure(options.time, options.iterations, options.requests, options.warmup, options.stable, shares),
        sweep=sweep,
        times=options.times,
        profile=options.profile,
        trace=options.trace,
        show_notes=screen.notes,
        against=against,
    )


def show_times(options: Any, screen: Screen, done: BenchReport) -> None:
    """Print what was measured."""
    from heterocc.runtime.cli.timing import to_csv

    if options.json:
        print_json(done.report)
        return
    if options.csv:
        print_plain(to_csv(done.results).rstrip("\n"))
        return
    for line in done.lines():
        print_plain(line) if isinstance(line, str) else screen.table(line)
    if done.profile is not None:
        print_plain(done.profile.to_table())


def check(options: Any, _screen: Screen) -> int:
    """Show which variants of a bundle can run on this machine, with reasons if not, and check all hashes."""
    from heterocc.runtime.cli.reports import check_bundle, print_check

    report = check_bundle(options.bundle, options.devices, options.trusted_key, options.require_signature)
    if options.json:
        print_json(report)
    else:
        print_check(report)
    return 0 if report["runs"] else 1


def inspect(options: Any, _screen: Screen) -> int:
    """Show the contents of a bundle: model, variants, partitions, weights; --json prints the whole manifest."""
    from heterocc.artifacts.reader import open_bundle
    from heterocc.runtime.cli.reports import print_bundle

    with open_bundle(options.bundle) as opened:
        if options.json:
            print_json(opened.manifest.model_dump(mode="json"))
        else:
            print_bundle(opened, plan=options.plan, members=options.members, kernels=options.kernels)
    return 0


def serve(options: Any, _screen: Screen) -> int:
    """Answer the Open Inference Protocol v2 over HTTP and gRPC. The page at / shows the models.

    It needs the extra `serve`.
    """
    from heterocc.runtime.cli.serving import serve_options

    serve_options(options)
    return 0


def _opening(options: Any, threads: int | None, hint: Any = None) -> Opening:
    from heterocc.runtime.cli.actions import Opening

    return Opening(options.bundle, options.devices, threads, options.trusted_key, options.require_signature, hint)
