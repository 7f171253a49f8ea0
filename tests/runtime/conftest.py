from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tvm_ffi

from tests.runtime import apis, standin, stress
from tests.runtime.apis import Api


@pytest.fixture
def bundle_of(tmp_path: Path) -> Callable[..., Path]:
    """Writes a bundle of stand-in variants and gives its path."""

    def write(*models: standin.Model) -> Path:
        return standin.write_bundle(tmp_path / "m.hcb", *models)

    return write


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> stress.Bundles:
    """The stress tests' network, compiled for whatever devices a test asks for."""
    return stress.Bundles(tmp_path_factory.mktemp("stress"))


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> stress.Samples:
    """Inputs of the stress tests' network and ONNX Runtime's results."""
    return stress.Samples.draw(tmp_path_factory.mktemp("samples"))


@pytest.fixture(
    params=[
        pytest.param(apis.OPENCL, marks=pytest.mark.opencl, id="opencl"),
        pytest.param(apis.VULKAN, marks=pytest.mark.vulkan, id="vulkan"),
    ]
)
def api(request: pytest.FixtureRequest) -> Api:
    """Each API that has a device here."""
    found: Api = request.param
    reason = found.why_not()
    if reason is not None:
        pytest.skip(f"no {found.label} here: {reason}")
    return found


@pytest.fixture
def api_faults(api: Api) -> Iterator[Callable[[str], None]]:
    """Simulates failures of the API's plug-in, none after the test."""
    inject = tvm_ffi.get_global_func(f"heterocc.{api.backend}.fault")
    yield inject
    inject("")


@pytest.fixture(params=["shared", "copied"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of device memory: aliased, if the device is a CPU, and copied, as for a separate device."""
    if request.param == "copied":
        monkeypatch.setattr("heterocc.runtime.execute.chain.shared_spaces", lambda _: frozenset())
    return str(request.param)
