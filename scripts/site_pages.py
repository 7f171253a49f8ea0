"""A hook of mkdocs: pages made from the code (commands, the index of decisions), and links to files outside docs/."""

from __future__ import annotations

import re
from pathlib import Path

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, text in (("commands.md", commands()), ("decisions/index.md", decisions())):
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace links to files outside `docs/` by their texts."""
    return re.sub(r"\[([^\]]+)\]\(\.\./(?!decisions/)[^)]+\)", r"\1", markdown)


def commands() -> str:
    """Every command with its arguments and options, from the command line itself."""
    from heterocc.compiler.cli.main import app

    group = typer.main.get_command(app)
    assert isinstance(group, click.Group) or hasattr(group, "commands")
    parts = ["# Commands", "Made from `heterocc COMMAND --help`."]
    for name, command in sorted(group.commands.items()):
        parts += _command(name, command)
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: click.Command) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
    usage = " ".join(["[OPTIONS]", *(_shown(p) + ("…" if p.nargs == -1 else "") for p in arguments)])
    parts = [f"## heterocc {name}", _cleaned(command.help or ""), f"    heterocc {name} {usage}"]
    rows = [(f"`{_shown(p)}`", getattr(p, "help", None)) for p in arguments]
    rows += [(", ".join(f"`{text}`" for text in (*p.opts, *p.secondary_opts)), p.help) for p in options]
    if rows:
        lines = ["| argument or option | |", "|---|---|"]
        lines += [f"| {first} | {_cleaned(text or '').replace('|', '&#124;')} |" for first, text in rows]
        parts.append("\n".join(lines))
    if command.epilog:
        examples = [line for line in re.split(r"\s+·\s+|\n", _cleaned(command.epilog)) if line.strip()]
        examples[0] = examples[0].removeprefix("Examples:").removeprefix("Example:").strip()
        parts.append("\n".join(f"    {line.strip()}" for line in examples if line.strip()))
    return parts


def _shown(argument: click.Parameter) -> str:
    return getattr(argument, "metavar", None) or str(argument.name).upper()


def _cleaned(text: str) -> str:
    """Help text on one line, safe in Markdown."""
    return " ".join(text.replace("\f", " ").split()).replace("<", "&lt;").replace("*", r"\*")


def decisions() -> str:
    """The index of the decisions: their numbers and titles, and which are superseded."""
    lines = ["# Decisions", "", "Why things are as they are, half a page each.", ""]
    for path in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        title, _, after, *_ = path.read_text(encoding="utf-8").splitlines()
        mark = f" ({after[0].lower()}{after[1:].rstrip('.')})" if after.startswith("Superseded") else ""
        lines.append(f"- [{title.lstrip('# ')}]({path.name}){mark}")
    return "\n".join(lines) + "\n"
