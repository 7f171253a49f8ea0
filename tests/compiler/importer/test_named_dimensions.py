"""Dimensions of inputs, fixed by their names."""

from pathlib import Path

import onnx.parser
import pytest
from typer.testing import CliRunner

from heterocc.artifacts.errors import DynamicShapeError, Hint, ShapeOptionError
from heterocc.artifacts.manifest import Range
from heterocc.compiler.cli.main import app
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.sizes.requests import ShapeRequest, require_bounds
from heterocc.runtime.files.shape_options import parse_dims
from tests.compiler.onnx_build import model, node, save, value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """a[batch,time] + b[batch,1], and an input without names."""
    ends = [value("a", ["batch", "time"]), value("b", ["batch", 1]), value("c", [None, 2])]
    return save(tmp_path, model([node("Add", "a b", "y"), node("Relu", "c", "z")], ends, [value("y"), value("z")]))


def test_a_name_is_fixed_in_every_input_that_has_it(path: Path) -> None:
    values = import_model(path, dims={"batch": 8, "time": 5}, shapes={"c": (4, 2)}).graph.values
    assert values["a"].shape == (8, 5) and values["b"].shape == (8, 1) and values["c"].shape == (4, 2)


def test_a_shape_and_a_name_may_be_mixed_but_not_contradict(path: Path) -> None:
    values = import_model(path, dims={"time": 5}, shapes={"b": (8, 1), "c": (4, 2)}).graph.values
    assert values["a"].shape == (8, 5)
    with pytest.raises(ShapeOptionError, match="dimension 0 is 'batch', which dim batch=4 makes 4"):
        import_model(path, dims={"batch": 4}, shapes={"b": (8, 1)})


def test_an_unknown_name_is_an_error_with_the_nearest_name(path: Path) -> None:
    with pytest.raises(ShapeOptionError, match="no dimension of the model's inputs is named 'bath'") as caught:
        import_model(path, dims={"bath": 8})
    assert caught.value.hint == "did you mean 'batch'?"


@pytest.mark.parametrize("size", [-1, 2.0, True, 2**41])
def test_a_size_that_no_dimension_has_is_an_error_that_names_it(path: Path, size: int) -> None:
    with pytest.raises(ShapeOptionError, match="dimension 'batch' cannot be"):
        import_model(path, dims={"batch": size})


def test_the_hint_for_a_dynamic_model_gives_names_and_asks_once_for_each(path: Path) -> None:
    with pytest.raises(DynamicShapeError) as caught:
        import_model(path)
    hint = caught.value.hint
    assert isinstance(hint, Hint)
    assert hint.command == "fix them, for example --dim batch=1 --dim time=128 --shape c=1,2; or add ORT to --devices"
    assert str(hint) == (
        "fix them, for example dims={'batch': 1, 'time': 128}, shapes={'c': (1, 2)}; or add ORT to `devices`"
    )


@pytest.mark.parametrize(
    "text", ["batch", "=8", "batch=", "batch=1..", "batch=1..2..3", "batch=-1", "batch=eight", "batch=1,8"]
)
def test_a_malformed_option_is_an_error_that_quotes_it(text: str) -> None:
    with pytest.raises(ShapeOptionError) as caught:
        parse_dims([text])
    assert caught.value.where == f"--dim {text}" and caught.value.exit_code == 2


def test_a_name_given_twice_is_an_error() -> None:
    with pytest.raises(ShapeOptionError, match="given twice"):
        parse_dims(["batch=8", "batch=4"])


def test_the_commands_on_models_take_names(path: Path) -> None:
    options = ["--dim", "batch=8", "--dim", "time=5", "--shape", "c=4,2", "--json", "-d", "ORT"]
    for command in ("query", "partition"):
        done = CliRunner().invoke(app, [command, str(path), *options])
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["query", str(path), "--dim", "tme=5"])
    assert done.exit_code == 2 and "did you mean 'time'?" in done.output


def test_dimensions_that_an_operator_needs_to_be_equal_get_one_name(tmp_path: Path) -> None:
    ends = [value("a", ["rows", 3]), value("b", ["count", "width"])]
    found = import_model(
        save(tmp_path, model([node("Concat", "a b", "y", axis=1)], ends, [value("y")])), keep_dims=True
    )
    assert found.graph.values["b"].shape == ("rows", "width")
    assert found.notes == (
        "Concat 'Concat_0' needs the dimensions 'rows' and 'count' to be equal: both are called 'rows' in the bundle",
    )
    with pytest.raises(ShapeOptionError, match="needs the dimensions 'count' and 'rows' to be equal"):
        require_bounds(ShapeRequest({}, {}, {"count": Range(min=1, max=4)}, ""), found)


def test_a_reshape_that_exchanges_the_batches_of_two_inputs_makes_them_equal_if_sizes_may_be_assumed() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 18]>
    agraph (int64[batch,steps] ids, float[items,30,32] hidden) => (float[a,b,4,8] y) <int64[3] rest = {-1, 4, 8}> {
        first = Shape<start = 0, end = 1>(ids)
        shape = Concat<axis = 0>(first, rest)
        y = Reshape(hidden, shape)
    }
    """
    found = import_model(onnx.parser.parse_model(text), keep_dims=True, assume=True)
    assert found.input_shape("hidden") == ("batch", 30, 32)
    assert found.graph.values["y"].shape == ("batch", 30, 4, 8)
    assert "both are called 'batch'" in str(found.notes)
    kept = import_model(onnx.parser.parse_model(text), keep_dims=True)
    assert kept.input_shape("hidden") == ("items", 30, 32)


@pytest.mark.parametrize(
    ("opset", "text"),
    [
        (18, "m (float[n,2,2] x, int64[k] axes) => (float[] y) { r = ReduceSumSquare(x, axes)  y = POOL(r) }"),
        (
            27,
            "m (float[n,c,8] x, float[c,1,k] w, float[n,c,p] s) => (float[] y) { y, t = Causal(x, w, , s) }",
        ),
    ],
    ids=["pooling of an unknown rank", "a definition for fixed sizes alone"],
)
def test_what_needs_more_than_is_known_is_imported_as_it_is(opset: int, text: str) -> None:
    text = text.replace("POOL", "AveragePool <ceil_mode = 1, kernel_shape = [2]>").replace(
        "Causal", "CausalConvWithState"
    )
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {text}')
    names = [node.op_type for node in import_model(proto, keep_dims=True).graph.nodes]
    assert names[-1] in ("AveragePool", "CausalConvWithState")
