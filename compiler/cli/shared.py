"""Commands that `heterocc` shares with `heterocc-run`: typer is given their options (runtime/cli/options.py)."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer
from rich.markup import escape

from heterocc.compiler.cli import completion
from heterocc.compiler.cli.console import err, errors, out
from heterocc.compiler.cli.help import examples
from heterocc.runtime.cli.commands import Screen
from heterocc.runtime.cli.options import MOST, Option
from heterocc.runtime.cli.table import TextTable


def _show_table(table: TextTable) -> None:
    from heterocc.compiler.cli.tables import rich_table

    out.print(rich_table(table))


SCREEN = Screen(_show_table, lambda note: err.print(f"[cyan]note:[/] {escape(note)}"))

Command = Callable[[Any, Screen], int]


def add(app: typer.Typer, command: Command, options: Iterable[Option], *shown: str, note: str = "") -> None:
    """Add a command, whose docstring, note and examples are its help. `given` are the options on the command line."""

    def called(context: typer.Context, **values: Any) -> None:
        sources = ((name, context.get_parameter_source(name)) for name in values)
        given = frozenset(name for name, source in sources if source is not None and source.name == "COMMANDLINE")
        with errors(values.get("json", False)):
            code = command(Namespace(**values, given=given), SCREEN)
            if code:
                raise typer.Exit(code)

    parameters = [_CONTEXT, *(_parameter(option) for option in options)]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    app.command(epilog=examples(*shown, note=note))(called)


_CONTEXT = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)


def _parameter(option: Option) -> inspect.Parameter:
    """The option as typer reads it from the signature of a function."""
    kind: Any = list[option.kind] if option.many else option.kind  # type: ignore[name-defined]
    more: dict[str, Any] = {"help": option.help}
    if option.metavar or option.choices:
        more["metavar"] = option.metavar or f"[{'|'.join(option.choices)}]"
    if option.least is not None:
        more |= {"min": option.least, "max": None if option.most == MOST else option.most}
    if option.completes.startswith("."):
        more["autocompletion"] = completion.files(*option.completes.split())
    elif option.completes:
        more["autocompletion"] = getattr(completion, option.completes)
    if option.panel:
        more["rich_help_panel"] = option.panel
    if option.shown_default:
        more["show_default"] = option.shown_default
    if option.choices:
        more["callback"] = _among(option.choices)
        more["autocompletion"] = completion.words(*option.choices)
    default: Any = False if option.kind is bool else option.default
    if option.is_argument if option.required is None else option.required:
        default = inspect.Parameter.empty
        more["show_default"] = False
    about: Any = typer.Argument(**more) if option.is_argument else typer.Option(*option.flags.split(), **more)
    annotation: object = Annotated[kind | None if default is None else kind, about]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _among(choices: tuple[str, ...]) -> Callable[[str | None], str | None]:
    """Refuse an unknown choice as the parser refuses other bad values: before the bundle is opened."""

    def known(value: str | None) -> str | None:
        if value is not None and value not in choices:
            raise typer.BadParameter(f"'{value}' is not one of {', '.join(map(repr, choices))}")
        return value

    return known
