"""What a caller asks for with `devices`, parsed once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heterocc.artifacts.errors import UsageError
from heterocc.runtime.select.request import DeviceRequest, parse_request


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (None, DeviceRequest("first")),
        ("GPU, cpu", DeviceRequest("list", ("GPU", "cpu"), text="GPU, cpu")),
        (["GPU", "CPU"], DeviceRequest("list", ("GPU", "CPU"), text="GPU,CPU")),
        ("", DeviceRequest("auto")),
        ("hetero:", DeviceRequest("auto", text="hetero:")),
        ("HETERO: GPU,CPU", DeviceRequest("list", ("GPU", "CPU"), text="HETERO: GPU,CPU")),
        (" auto:GPU,-CPU ", DeviceRequest("auto", ("GPU",), ("CPU",), text="auto:GPU,-CPU")),
        ("AUTO,CPU", DeviceRequest("auto", then=("CPU",), text="AUTO,CPU")),
        ("MULTI", DeviceRequest("multi", text="MULTI")),
    ],
)
def test_every_form_is_one_record(devices: str | Sequence[str] | None, expected: DeviceRequest) -> None:
    assert parse_request(devices) == expected


def test_a_request_without_names_keeps_what_it_excludes() -> None:
    asked = parse_request("MULTI:-GPU,-ORT").without_names
    assert asked == parse_request("AUTO:-GPU,-ORT") and asked.is_automatic and not asked.is_multi
    assert parse_request("MULTI").without_names == parse_request("AUTO")


def test_other_types_are_refused() -> None:
    with pytest.raises(UsageError, match="must be a string"):
        parse_request([1])  # type: ignore[list-item]
