"""The options of the commands that both programs have, and what those of `serve` become."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from heterocc.compiler.cli.main import app
from heterocc.runtime.cli.main import run_command
from heterocc.runtime.cli.options import CHECK, RUN, SERVE, Option
from heterocc.runtime.serve import ServeOptions


def served(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> ServeOptions:
    found: list[ServeOptions] = []
    monkeypatch.setattr("heterocc.runtime.serve.serve", found.append)
    assert run_command(["serve", *arguments]) == 0
    return found[0]


@pytest.mark.parametrize(("name", "options"), [("run", RUN), ("check", CHECK), ("serve", SERVE)])
def test_both_commands_have_the_same_options_and_defaults(name: str, options: Sequence[Option]) -> None:
    parser = argparse.ArgumentParser()
    for option in options:
        option.add_to(parser)
    command: Any = typer.main.get_command(app)
    theirs = {p.name: p for p in command.commands[name].params if p.name != "help"}
    ours = {a.dest: a for a in parser._actions if a.dest != "help"}
    assert theirs.keys() == ours.keys()
    for name, parameter in theirs.items():
        assert set(ours[name].option_strings) == set(parameter.opts if parameter.param_type_name == "option" else ())
        assert ours[name].default == parameter.default or not (ours[name].default or parameter.default), name


def test_the_options_become_those_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch, "models") == ServeOptions([Path("models")])
    found = served(monkeypatch, "a.hcb", "b", "--queue", "3", "--max-request-mb", "512", "--allowed-host", "x.example")
    assert found.models == [Path("a.hcb"), Path("b")] and found.queue == 3 and found.allowed_hosts == ["x.example"]
    assert found.max_request_bytes == 512 << 20 and found.memory == 2048 << 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "--queue", "0"], "'0' is not an integer of at least 1"),
        (["models", "--http-port", "70000"], "from 0 to 65535"),
        (["models", "--drain", "-1"], "is not a number of at least 0"),
        (["models", "--tls-key", "k.pem"], "TLS needs both --tls-cert and --tls-key"),
        ([], "models"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["serve", *arguments]) == 2
    error = capfd.readouterr().err
    assert "error[HC120]" in error and message in error
