"""Runs whose outputs are inputs of the next run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import FeedError, UsageError
from heterocc.runtime import load
from heterocc.runtime.execute.dynamic import in_memory
from tests.runtime.standin import CPU, Model, Op, Part, write_bundle


def total(rows: int | str) -> Model:
    """next = x + state and twice = next · 2, for tensors [rows, 128]."""
    part = Part(
        device=0,
        inputs=("x", "state"),
        outputs=("next", "twice"),
        ops=(Op("add", "add", ("x", "state"), "next"), Op("mul", "mul", ("next", "w"), "twice")),
        params=("w",),
    )
    shape = (rows, 128)
    return Model(
        values=dict.fromkeys(("x", "state", "next", "twice"), ("float32", shape)),
        inputs=("x", "state"),
        outputs=("next", "twice"),
        parts=(part,),
        weights={"w": np.full((1, 128) if isinstance(rows, str) else shape, 2, np.float32)},
        devices=(CPU,),
    )


@pytest.fixture(scope="module", params=[64, "n"], ids=["fixed", "dynamic"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("total") / "m.hcb", total(request.param))


def filled(value: float, rows: int = 64) -> np.ndarray:
    return np.full((rows, 128), value, np.float32)


def test_a_run_reads_what_the_last_one_wrote(bundle: Path) -> None:
    with load(bundle) as session:
        binding = session.bind(state={"state": "next"})
        found = [float(binding.run({"x": filled(1), "state": filled(10)})["twice"][0, 0])]
        found += [float(binding.run({"x": filled(n)})["twice"][-1, -1]) for n in (2, 3, 4, 5)]
        assert found == [22, 26, 32, 40, 50]
        np.testing.assert_array_equal(binding.state["state"], filled(25))
        assert float(binding.run({"x": filled(1), "state": filled(0)})["twice"][0, 0]) == 2


def test_the_state_is_not_copied(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(bundle) as session:
        binding = session.bind(state={"state": "next"})
        binding.run({"x": filled(1), "state": filled(0)})
        copied: list[int] = []
        original = in_memory.aligned_bytes
        monkeypatch.setattr(in_memory, "aligned_bytes", lambda size: (copied.append(size), original(size))[1])
        places = set()
        for _ in range(6):
            binding.run({"x": binding.state["state"] * 0})
            places.add(binding.state["state"].ctypes.data)
        if session.inputs[0].shape == (64, 128):
            assert len(places) == 2  # two arrays in turns
        assert not any(size == filled(0).nbytes for size in copied[6:])
        np.testing.assert_array_equal(binding.state["state"], filled(1))


def test_the_first_run_needs_the_state(bundle: Path) -> None:
    with load(bundle) as session:
        binding = session.bind(state={"state": "next"})
        with pytest.raises(FeedError, match="input 'state' is missing"):
            binding.run({"x": filled(1)})
        binding.run({"x": filled(1), "state": filled(0)})
        binding.reset()
        assert not binding.state
        with pytest.raises(FeedError, match="input 'state' is missing"):
            binding.run({"x": filled(1)})


def test_a_run_that_is_refused_leaves_the_state(bundle: Path) -> None:
    with load(bundle) as session:
        binding = session.bind(state={"state": "next"})
        binding.run({"x": filled(1), "state": filled(0)})
        with pytest.raises(FeedError):
            binding.run({"x": filled(1, rows=3)})
        assert float(binding.run({"x": filled(1)})["twice"][0, 0]) == 4


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"stat": "next"}, "the model has no input 'stat'"),
        ({"state": "nex"}, "the model has no output 'nex'"),
    ],
)
def test_unknown_names_are_refused(bundle: Path, state: dict[str, str], message: str) -> None:
    with load(bundle) as session, pytest.raises(FeedError, match=re.escape(message)):
        session.bind(state=state)


def test_an_output_of_another_shape_is_refused(tmp_path: Path) -> None:
    model = total(64)
    model.values["x"] = model.values["next"] = ("float32", (64, 128))
    model.values["state"] = ("float32", (1, 128))
    with (
        load(write_bundle(tmp_path / "m.hcb", model)) as session,
        pytest.raises(FeedError, match="cannot be input 'state"),
    ):
        session.bind(state={"state": "next"})


def test_a_state_and_shapes_are_refused_together(bundle: Path) -> None:
    with load(bundle) as session, pytest.raises(UsageError, match="either shapes or a state"):
        session.bind({"x": (64, 128)}, state={"state": "next"})  # type: ignore[call-overload]
