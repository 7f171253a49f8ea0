"""Arguments for devices: "GPU,CPU" and ["GPU", "CPU"] are equivalent; other types are typed errors."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from heterocc.artifacts.errors import ShapeOptionError, UnknownDeviceError, UsageError
from heterocc.artifacts.manifest import Range
from heterocc.compiler.checking.verify import verify_bundle
from heterocc.compiler.devices import lists
from heterocc.compiler.devices.names import ORT_IS_LAST, host_device, resolve_devices
from heterocc.compiler.options import CompileOptions
from heterocc.compiler.pipeline.compile import compile_model, partition_model, query_devices
from heterocc.compiler.support.query import query_model
from heterocc.runtime import load
from heterocc.runtime.select.request import DeviceRequest, parse_request
from tests.compiler.onnx_build import model, node, save, value
from tests.compiler.small import chain


@pytest.mark.parametrize("devices", ["CPU,ORT", "CPU, ORT", ("CPU", "ORT"), ["CPU", "ORT"], ["CPU,ORT"]])
def test_every_entry_takes_devices_as_text_and_as_a_sequence(devices: Any, tmp_path: Path) -> None:
    path = chain(tmp_path / "m.onnx", 1)
    options = CompileOptions(devices=devices)
    plans = [
        compile_model(path, options=options, stop_after="partition").plan,
        compile_model(path, devices=devices, stop_after="partition").plan,
        partition_model(path, options).plan,
    ]
    assert [[d.name for d in plan.machine.devices] for plan in plans] == [["CPU", "ORT"]] * 3
    for query in (query_devices(path, options), query_model(path, devices)):
        assert [d.name for d in query.devices] == ["CPU", "ORT"]
    assert [d.name for d in resolve_devices(devices)[0]] == ["CPU", "ORT"]


def test_a_list_of_devices_is_parsed_once_in_a_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def counted(devices: Any) -> DeviceRequest:
        asked.append(devices)
        return parse_request(devices)

    monkeypatch.setattr(lists, "parse_request", counted)
    path = chain(tmp_path / "m.onnx", 1)
    compile_model(path, devices="CPU", variants=["AUTO:CPU,ORT"], stop_after="partition")
    assert asked == [("CPU",), ("AUTO:CPU,ORT",)]
    query_model(path, "HETERO:CPU")
    assert asked[2:] == ["HETERO:CPU"]


def test_an_empty_list_of_devices_is_an_error_of_the_options() -> None:
    assert [found.kind for found in CompileOptions(devices="").lists] == ["auto"]
    for wrong in ({"devices": []}, {"variants": ["CPU", []]}, {"devices": "CPU,"}):
        with pytest.raises(UnknownDeviceError):
            CompileOptions(**wrong)


def test_names_and_devices_are_not_mixed_in_a_query(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="devices must be"):
        query_model(chain(tmp_path / "m.onnx", 1), ["ORT", host_device()])  # type: ignore[list-item]


def test_variants_take_one_list_as_text_and_several_of_either_form() -> None:
    assert CompileOptions(variants="CPU,ORT").variants == (("CPU,ORT",),)
    assert CompileOptions(variants=["CPU,ORT", ["ORT"]]).variants == (("CPU,ORT",), ("ORT",))


def test_bounds_of_a_dimension_become_one_range_and_a_size_stays_a_number() -> None:
    options = CompileOptions(dims={"n": (1, 64), "m": [2, 3], "k": 8})
    assert options.dims == {"n": Range(min=1, max=64), "m": Range(min=2, max=3), "k": 8}
    assert replace(options, dims=options.dims) == options


@pytest.mark.parametrize("bounds", [(64, 1), (-1, 4), (1, 2**50), (1,), ("1", "2"), (1, 2, 3), Range(min=4, max=2)])
def test_bounds_that_cannot_be_are_an_error_that_names_the_dimension(bounds: Any) -> None:
    with pytest.raises(ShapeOptionError, match="bounds of dimension 'n' cannot be") as caught:
        CompileOptions(dims={"n": bounds})
    assert "(1, 64)" in str(caught.value.hint)


@pytest.mark.parametrize(
    "wrong",
    [
        {"devices": 5},
        {"devices": [1]},
        {"devices": b"CPU"},
        {"devices": {"CPU": 1}},
        {"variants": [3]},
        {"affinity": 1},
        {"shapes": [("x", 1)]},
        {"shapes": {"x": 4}},
        {"inputs": 1},
        {"check": "no"},
        {"seed": -1},
        {"seed": 2**31},
        {"seed": "1"},
    ],
    ids=repr,
)
def test_an_option_of_another_type_is_a_usage_error_that_names_it(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        CompileOptions(**wrong)
    assert next(iter(wrong)) in caught.value.message


def test_devices_of_another_type_are_usage_errors_in_query_and_load(tmp_path: Path) -> None:
    path, bundle = chain(tmp_path / "m.onnx", 1), tmp_path / "m.hcb"
    compile_model(path, bundle, devices="CPU", check=False)
    for ask in (lambda d: query_model(path, d), lambda d: load(bundle, d), resolve_devices):
        for devices in (5, [5]):
            with pytest.raises(UsageError, match=r"devices must be (text|a string)"):
                ask(devices)
    load(bundle, ["CPU"]).close()


def test_paths_may_be_text() -> None:
    options = CompileOptions(affinity="a.toml", device_files="d.toml", properties="CPU.threads=1", inputs="i.npz")  # type: ignore[arg-type]
    assert (options.affinity, options.device_files) == (Path("a.toml"), (Path("d.toml"),))
    assert (options.properties, options.inputs) == (("CPU.threads=1",), Path("i.npz"))


@pytest.mark.parametrize("devices", ["ORT,CPU", "AUTO:ORT,CPU"])
def test_a_list_whose_order_is_not_kept_is_warned_of(devices: str, tmp_path: Path) -> None:
    report = compile_model(chain(tmp_path / "m.onnx", 1), devices=devices, stop_after="partition")
    assert report.warnings == (ORT_IS_LAST,)
    assert ORT_IS_LAST not in report.notes


def test_a_graph_without_a_name_compiles(tmp_path: Path) -> None:
    body = {f"{side}_branch": onnx.helper.make_graph([node(op, "x", "r")], "", [], [onnx.ValueInfoProto(name="r")])
            for side, op in (("then", "Neg"), ("else", "Abs"))}  # fmt: skip
    made = model([node("If", "c", "y", **body)], [value("c", [], 9), value("x", [4])], [value("y", [4])])
    made.graph.name = ""
    path = save(tmp_path, made)
    compile_model(path, tmp_path / "m.hcb", devices="CPU,ORT")
    assert verify_bundle(tmp_path / "m.hcb", path).ok
