"""The public interface of `heterocc.compiler`: its names, errors for wrong keywords, printed forms of results."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import heterocc.artifacts.errors
import heterocc.compiler
import heterocc.compiler.errors
from heterocc.artifacts.errors import HeteroccError, UsageError
from heterocc.compiler import compile_model, import_model, partition_model, query_model, verify_bundle
from tests.compiler.small import conv_net


@pytest.mark.parametrize("name", heterocc.compiler.__all__)
def test_every_public_name_can_be_imported_and_is_documented_in_one_place(name: str) -> None:
    assert getattr(heterocc.compiler, name) is not None
    assert name in (heterocc.compiler.__doc__ or "")


def test_every_error_class_can_be_imported_from_the_compiler() -> None:
    classes = {
        name
        for name, item in vars(heterocc.artifacts.errors).items()
        if isinstance(item, type) and issubclass(item, HeteroccError)
    }
    assert classes == set(heterocc.compiler.errors.__all__)
    for name in classes:
        assert getattr(heterocc.compiler.errors, name) is getattr(heterocc.artifacts.errors, name)


def test_the_version_is_that_of_the_installed_package() -> None:
    assert heterocc.compiler.__version__ == version("heterocc")


def test_importing_the_compiler_loads_nothing_costly_not_even_for_its_errors_and_version() -> None:
    script = """
import sys
import heterocc.compiler
assert "importlib.metadata" not in sys.modules
heterocc.compiler.errors.HeteroccError
heterocc.compiler.UsageError
heterocc.compiler.__version__
assert not {"numpy", "pydantic", "tvm", "tvm_ffi", "onnx", "onnxruntime", "typer", "rich"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("function", "wrong", "nearest"),
    [
        (compile_model, "device", "devices"),
        (compile_model, "shape", "shapes"),
        (compile_model, "basedir", "base_dir"),
        (partition_model, "afinity", "affinity"),
        (query_model, "shape", "shapes"),
        (query_model, "propertys", "properties"),
        (import_model, "shape", "shapes"),
        (verify_bundle, "device", "devices"),
    ],
)
def test_a_wrong_keyword_is_an_error_that_names_it_and_the_nearest_right_one(
    function: Any, wrong: str, nearest: str
) -> None:
    arguments: tuple[str | None, ...] = ("m.onnx", None) if function is verify_bundle else ("m.onnx",)
    with pytest.raises(UsageError) as caught:
        function(*arguments, **{wrong: "CPU"})
    assert f"'{wrong}'" in caught.value.message and caught.value.hint == f"did you mean '{nearest}'?"
    assert "__init__" not in str(caught.value)


def test_a_keyword_that_resembles_none_lists_them_all() -> None:
    with pytest.raises(UsageError) as caught:
        compile_model("m.onnx", optimise_for="speed")
    assert "devices" in str(caught.value.hint) and "shapes" in str(caught.value.hint)


def test_options_of_another_type_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="options must be CompileOptions, not dict"):
        compile_model("m.onnx", "m.hcb", {"devices": "CPU"})  # type: ignore[arg-type]


def test_results_print_as_one_short_line(tmp_path: Path) -> None:
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    report = compile_model(model, bundle, devices="CPU")
    assert repr(report) == f"<CompileReport {report.summary}; {bundle}, {report.size / 1000:.1f} kB>"
    assert "no bundle" in repr(partition_model(model, devices="CPU"))
    verified = verify_bundle(bundle, None)
    imported = import_model(model)
    query = query_model(imported, "CPU")
    for result in (report, report.plan, report.plans[0], imported, imported.graph, verified, query):
        shown = repr(result)
        assert "\n" not in shown and len(shown) < 200, shown
    assert repr(verified).startswith("<VerifyReport main against the golden vectors (seed 0): 1 output, ok")
