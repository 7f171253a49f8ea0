"""The command `heterocc-run`: run, bench, check, inspect and serve bundles where the compiler is not installed."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from heterocc.artifacts.errors import HeteroccError, UsageError
from heterocc.artifacts.text.printable import printable
from heterocc.runtime.cli import commands, options
from heterocc.runtime.cli.commands import Screen
from heterocc.runtime.cli.options import Option
from heterocc.runtime.cli.output import (
    abandon_stdout,
    flush_stdout,
    internal_error,
    print_json,
    print_plain,
    stdout_errors,
)
from heterocc.runtime.cli.process import end_on_signals, prepare_streams, yield_to_signal

PROGRAM = "heterocc-run"

Command = Callable[[argparse.Namespace, Screen], int]

_COMMANDS: Mapping[Command, Sequence[Option]] = {
    commands.run: options.RUN,
    commands.bench: options.BENCH,
    commands.check: options.CHECK,
    commands.inspect: options.INSPECT,
    commands.serve: options.SERVE,
}


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
            given = _parser().parse_args(arguments)
    except SystemExit:
        return 0
    command: Command = given.command
    return command(given, Screen(lambda table: print_plain(table.text()), lambda note: _show(f"note: {note}")))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, description="Run bundles that heterocc compiled.", allow_abbrev=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command, listed in _COMMANDS.items():
        about = " ".join((command.__doc__ or "").split())
        added: argparse.ArgumentParser = parsers.add_parser(
            command.__name__, help=about.partition(". ")[0], description=about, allow_abbrev=False
        )
        added.set_defaults(command=command)
        for option in listed:
            option.add_to(added)
    return parser


class _Version(argparse.Action):
    """Print the version, which is read only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the version and exit."""
        from heterocc.artifacts.version import __version__

        print_plain(f"{PROGRAM} {__version__}")
        parser.exit()


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


if __name__ == "__main__":
    main()
