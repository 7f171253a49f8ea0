"""The package `heterocc` itself: its names, what they import, and what completion and type checkers see."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

import heterocc
from heterocc.artifacts.errors import FeedError, UsageError
from heterocc.compiler import CompileOptions, calibrate_model, compile_model, explain_model, partition_model
from heterocc.compiler.options import Options
from tests.compiler.small import conv_net

PUBLIC = ["heterocc", "heterocc.compiler", "heterocc.compiler.errors", "heterocc.runtime", "heterocc.runtime.errors"]


def test_a_model_is_compiled_loaded_and_run_with_one_import(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    heterocc.compile(model, tmp_path / "m.hcb", devices="CPU")
    with heterocc.load(tmp_path / "m.hcb") as session:
        assert isinstance(session, heterocc.Session)
        (given,), (out,) = session.inputs, session.outputs
        x = np.random.default_rng(0).standard_normal([d for d in given.shape or () if isinstance(d, int)])
        x = x.astype(np.float32)
        expected = session.run({given.name: x})[out.name]
        for found in (
            session(x),
            session({given.name: x}),
            session(**{given.name: x}),
            session.run(x)[out.name],
            session.run([x])[out.name],
            session.run([out.name], {given.name: x})[0],
        ):
            np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(session.run_async(x).result()[out.name], expected)
        np.testing.assert_array_equal(session.run(None, x)[0], expected)
        with pytest.raises(UsageError, match="not both"):
            session(x, **{given.name: x})
        for wrong in ([x, x], [out.name], 3.0):
            with pytest.raises(FeedError):
                session.run(wrong)  # type: ignore[call-overload]
    assert heterocc.__version__ == version("heterocc") and heterocc.devices is heterocc.runtime.devices


def test_importing_the_package_or_the_runtime_loads_no_compiler_and_no_library() -> None:
    script = """
import sys
import heterocc
assert not [m for m in sys.modules if m.startswith("heterocc.")]
assert "numpy" not in sys.modules
dir(heterocc)
heterocc.load
assert not {"onnx", "tvm", "onnxruntime", "pydantic", "heterocc.compiler", "heterocc.passes"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "heterocc", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"heterocc {heterocc.__version__}\n"


@pytest.mark.parametrize("name", PUBLIC)
def test_completion_lists_the_public_names_and_nothing_else(name: str) -> None:
    module = import_module(name)
    listed = dir(module)
    assert set(module.__all__) <= set(listed)
    assert not [n for n in listed if n.startswith("_") and n != "__version__"]
    for entry in listed:
        found = getattr(module, entry)
        assert not inspect.ismodule(found) or found.__name__.startswith("heterocc.")
    assert "import_module" not in listed and "annotations" not in listed and "TYPE_CHECKING" not in listed


@pytest.mark.parametrize("function", [compile_model, partition_model, explain_model, calibrate_model])
def test_every_option_is_a_named_typed_and_documented_keyword(function: object) -> None:
    assert callable(function)
    parameters = inspect.signature(function).parameters
    types = get_type_hints(Options)
    given = [f.name for f in fields(CompileOptions) if f.init]
    assert list(types) == given
    for name, type_ in types.items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY and parameters[name].annotation == type_
    defaults = CompileOptions()
    assert all(parameters[name].default == getattr(defaults, name) for name in given)
    assert not [p for p in parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
    assert "in order of priority" in (function.__doc__ or "")


TYPED = """
import heterocc
import heterocc.compiler
import heterocc.runtime

reveal_type(heterocc.__version__)
reveal_type(heterocc.load("m.hcb"))
reveal_type(heterocc.compile("m.onnx", devices="CPU").output)
reveal_type(heterocc.runtime.devices())
heterocc.compiler.compile_model("m.onnx", devices=3)
"""


@pytest.mark.slow
def test_mypy_sees_types_of_an_editable_installation(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", "typed.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    revealed = [
        line.partition("Revealed type is ")[2].strip('"') for line in done.stdout.splitlines() if "Revealed" in line
    ]
    assert revealed[:2] == ["builtins.str", "heterocc.runtime.session.Session"] or revealed[0] == "str", done.stdout
    assert "Path" in revealed[2] and "Inventory" in revealed[3] and "Any" not in "".join(revealed), done.stdout
    assert 'Argument "devices"' in done.stdout and "import-untyped" not in done.stdout, done.stdout


def test_no_hint_asks_an_index_for_heterocc() -> None:
    """It is on none, and whoever registered the name there would be run (decision 75)."""
    root = Path(__file__).parents[1]
    sources = [
        file
        for room in ("artifacts", "compiler", "package", "passes", "runtime")
        for file in (root / room).rglob("*.py")
    ]
    asked = re.compile(r"pip install [^\n]*?\bheterocc\b(?!.{0,20}@)")
    assert len(sources) > 500 and not [str(file) for file in sources if asked.search(file.read_text(encoding="utf-8"))]
