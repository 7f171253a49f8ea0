"""The file of `--config`: properties of all devices."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from heterocc.artifacts.errors import DeviceFileError, FileMissingError, HeteroccError, PropertyError, UsageError
from heterocc.compiler import compile_model, query_model
from heterocc.compiler.devices.names import resolve_devices
from tests.compiler.devices.test_names import DISCRETE, INTEGRATED, here
from tests.compiler.small import chain

TWO = replace(DISCRETE, dtypes=frozenset(["float32", "float16"]))
TEXTS = {
    "devices.toml": '[cpu]\nthreads = 4\n[GPU]\nprofile = true\n["GPU.1"]\nprofile = "off"\ntune = false\n',
    "devices.json": '{"cpu": {"Threads": "4"}, "GPU": {"profile": "on"}, "GPU.1": {"profile": false, "tune": "off"}}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_sets_the_properties_of_all_devices(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(TEXTS[name])
    devices, notes = resolve_devices("GPU.1,GPU,CPU", config=path, present=here(DISCRETE, INTEGRATED))
    assert [dict(d.properties) for d in devices] == [
        {"profile": "off", "tune": "off"},
        {"profile": "on"},
        {"threads": "4"},
    ]
    assert notes == ()
    (cpu,), notes = resolve_devices("CPU", config=path, present=here())
    assert cpu.properties == {"threads": "4"}
    assert notes == ("the configuration file's properties of GPU, GPU.1 are not used",)


def test_the_example_in_the_documentation_is_a_configuration_file(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "devices.md").read_text()
    (block,) = [b for b in re.findall(r"```toml\n(.*?)```", text, re.DOTALL) if "backend =" not in b]
    (tmp_path / "devices.toml").write_text(block)
    devices, _ = resolve_devices("GPU,CPU,GPU.1", config=tmp_path / "devices.toml", present=here(TWO, INTEGRATED))
    assert [d.properties.get("precision") for d in devices] == ["f16", None, None]


def test_a_property_of_the_command_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "devices.toml"
    path.write_text('[CPU]\nthreads = 4\nprofile = "on"\n')
    (cpu,), _ = resolve_devices("CPU", properties=["cpu.threads=2"], config=path)
    assert cpu.properties == {"threads": "2", "profile": "on"}


@pytest.mark.parametrize(
    ("text", "kind", "place", "message"),
    [
        ("[CPU]\nthread = 4\n", PropertyError, "[CPU] thread", "no property 'thread'"),
        ("[CPU]\nthreads = 0\n", PropertyError, "[CPU] threads", "not a value of CPU.threads"),
        ("[CPU]\nthreads = [1]\n", DeviceFileError, "[CPU] threads", "must be text"),
        ("[CPU]\nthreads = 1.5\n", DeviceFileError, "[CPU] threads", "must be text"),
        ("threads = 4\n", DeviceFileError, "threads", "is not a table of properties"),
        ("[CPU\n", DeviceFileError, "devices.toml", "the configuration file is not valid TOML"),
    ],
)
def test_a_wrong_file_is_an_error_with_its_place(
    text: str, kind: type[HeteroccError], place: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "devices.toml"
    path.write_text(text)
    with pytest.raises(kind, match=message) as caught:
        resolve_devices("CPU", config=path)
    assert str(caught.value.where).startswith(str(path)) and str(caught.value.where).endswith(place)
    assert caught.value.hint or kind is PropertyError or "TOML" in message


def test_a_missing_file_and_one_of_another_kind_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError, match="cannot read configuration file"):
        resolve_devices("CPU", config=tmp_path / "nothing.toml")
    (tmp_path / "devices.yaml").write_text("CPU: 1")
    with pytest.raises(DeviceFileError, match=r"the configuration file is neither \.toml nor \.json"):
        resolve_devices("CPU", config=tmp_path / "devices.yaml")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(DeviceFileError, match="not a mapping of devices"):
        resolve_devices("CPU", config=tmp_path / "list.json")


def test_compile_and_query_take_the_file(tmp_path: Path) -> None:
    model, path = chain(tmp_path / "m.onnx", 1), tmp_path / "devices.toml"
    path.write_text("[CPU]\nthreads = 1\n[VULKAN]\nprofile = true\n")
    report = compile_model(model, devices="CPU", config=path, stop_after="partition")
    assert any("properties of VULKAN are not used" in note for note in report.notes)
    assert dict(query_model(model, "CPU", config=path).devices[0].properties) == {"threads": "1"}
    path.write_text('[CPU]\nmcpu = "x86-64-v3"\n')
    with pytest.raises(UsageError, match=r"both CPU targets and CPU\.mcpu"):
        compile_model(model, devices="CPU", config=path, cpu_targets="x86-64-v3", stop_after="partition")
