"""Random small networks with symbolic dimensions: one bundle equals ONNX Runtime at any size within its bounds."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnxruntime.capi import onnxruntime_pybind11_state

from heterocc.artifacts.errors import FeedError, UnsupportedOpError
from heterocc.compiler import compile_model
from heterocc.compiler.checking.compare import compare
from heterocc.runtime import Session, load
from tests.few_examples import few
from tests.fuzz.random_network import numbers
from tests.fuzz.symbolic_graphs import MOST, SymbolicNetwork, sizes_of, symbolic_networks
from tests.fuzz.test_random_graphs import DEVICES
from tests.guard_pages import guarded

ON_DEVICES = [device if device == "CPU" else f"{device},CPU" for device in DEVICES]


def takes(session: Session, network: SymbolicNetwork, sizes: Mapping[str, int]) -> bool:
    """Whether sizes are within the bounds that a session states."""
    stated = {info.name: info.sizes for info in session.inputs}
    return all(
        allowed is None or not isinstance(dim, str) or sizes[dim] in allowed
        for name, shape in network.inputs.items()
        for dim, allowed in zip(shape, stated[name] or (None,) * len(shape), strict=True)
    )


def agree(network: SymbolicNetwork, draws: list[dict[str, int]], devices: list[str]) -> None:
    """A bundle for each list of devices gives what ONNX Runtime gives, or the error for a size out of bounds.

    Inputs end at pages without access.
    """
    proto = network.model()
    reference = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for listed in devices:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "m.hcb"
            bounds = {} if listed == "CPU" else dict.fromkeys(network.dims, (1, MOST))
            try:
                compile_model(proto, path, devices=listed, dims=bounds, check=False)
            except UnsupportedOpError as error:
                assert "to be equal" in error.message or "cannot be" in error.message, error
                continue
            with load(path) as session:
                for sizes in draws:
                    run_at(session, reference, network, sizes)


def run_at(
    session: Session, reference: onnxruntime.InferenceSession, network: SymbolicNetwork, sizes: dict[str, int]
) -> None:
    """Compare a run at some sizes."""
    shapes = {n: [sizes[d] if isinstance(d, str) else d for d in shape] for n, shape in network.inputs.items()}
    feed = {name: guarded(numbers(tuple(shape), 1)) for name, shape in shapes.items()}
    found = None
    if not takes(session, network, sizes):
        try:
            found = session.run(feed)
        except FeedError:
            return
        # Without code for the size 0 there are only results without elements.
        assert 0 in sizes.values() and not any(np.asarray(array).size for array in found.values())
    try:
        expected = reference.run(None, feed)
    except (onnxruntime_pybind11_state.RuntimeException, onnxruntime_pybind11_state.Fail):
        return  # ONNX Runtime rejects the sizes
    found = session.run(feed) if found is None else found
    for wanted, got in zip(expected, found.values(), strict=True):
        difference = compare(str(sizes), got, wanted)
        assert difference.ok, f"{sizes}: {difference.reason}"


@few(2)
@given(st.data())
def test_a_random_network_with_symbolic_dimensions_equals_onnx_runtime_at_random_sizes(data: st.DataObject) -> None:
    network = data.draw(symbolic_networks(least=2, most=3))
    agree(network, data.draw(st.lists(sizes_of(network.dims), min_size=4, max_size=4)), ["CPU"])


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data())
def test_many_random_networks_with_symbolic_dimensions_equal_onnx_runtime_on_every_device(data: st.DataObject) -> None:
    network = data.draw(symbolic_networks())
    agree(network, data.draw(st.lists(sizes_of(network.dims), min_size=6, max_size=6)), ON_DEVICES)
