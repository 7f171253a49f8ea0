"""Bundles for several shapes of inputs, and code for dimensions that are known only at run time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.errors import DeviceLostError, FeedError, UsageError
from heterocc.artifacts.manifest import Device, Range
from heterocc.runtime import load, shapes
from heterocc.runtime.feeds import FeedCheck, TensorInfo
from heterocc.runtime.loading.loaded import Loaded
from heterocc.runtime.sizes import Sizes
from tests.runtime.standin import CPU, Model, Op, Part, chain, write_bundle


def rows(count: int) -> np.ndarray:
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)


def scaled(count: int | str, shapes_of: str | None = None, bounds: Range | None = None) -> Model:
    """y = x * w + x for x[count,4]; the weight is the same for every count."""
    part = Part(
        device=0,
        inputs=("x",),
        outputs=("y",),
        ops=(Op("mul", "mul", ("x", "w"), "a"), Op("add", "add", ("a", "x"), "y")),
        params=("w",),
    )
    shape = (count, 4)
    weight = np.full((1, 4) if isinstance(count, str) else (count, 4), 2, np.float32)
    return Model(
        values=dict.fromkeys(("x", "a", "y"), ("float32", shape)),
        inputs=("x",),
        outputs=("y",),
        parts=(part,),
        weights={"w": weight},
        devices=(CPU,),
        bounds={} if bounds is None or not isinstance(count, str) else {count: bounds},
        shapes_of=shapes_of,
    )


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batches of 1 and 3."""
    return write_bundle(tmp_path_factory.mktemp("static") / "m.hcb", scaled(1), scaled(3, "CPU"))


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batches of 2, and of 1 to 8 by code for any."""
    path = tmp_path_factory.mktemp("dynamic") / "m.hcb"
    return write_bundle(path, scaled(2), scaled("n", "CPU", Range(min=1, max=8)))


def test_each_request_runs_the_code_for_its_shapes(static: Path) -> None:
    with load(static) as session:
        for count in (1, 3, 3, 1):
            np.testing.assert_array_equal(session.run({"x": rows(count)})["y"], rows(count) * 3)
            np.testing.assert_array_equal(session.run(None, {"x": rows(count)})[0], rows(count) * 3)
        assert [v.name for v in session.variants] == ["CPU", "CPU#1"]


def test_a_variant_is_loaded_when_a_request_first_needs_it(static: Path) -> None:
    with load(static) as session:
        before = session.allocations
        session.run({"x": rows(1)})
        assert session.allocations == before
        session.run({"x": rows(3)})
        after = session.allocations
        assert after > before
        session.run({"x": rows(3)})
        assert session.allocations == after


def test_queued_requests_run_the_code_for_their_shapes(static: Path, dynamic: Path) -> None:
    for path, counts in ((static, (1, 3)), (dynamic, (2, 7))):
        with load(path, requests=2) as session:
            futures = [(count, session.run_async({"x": rows(count)})) for count in counts * 10]
            for count, future in futures:
                np.testing.assert_array_equal(future.result()["y"], rows(count) * 3)
            for count, result in zip(counts * 2, session.stream({"x": rows(n)} for n in counts * 2), strict=True):
                np.testing.assert_array_equal(result["y"], rows(count) * 3)


@pytest.fixture(scope="module")
def two_devices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batches of 1 and 3 for each of the devices A and B."""
    models = [
        replace(scaled(count, shapes_of), devices=(Device(name=name, backend="cpu"),))
        for name, first in (("A", "A"), ("B", "B#2"))
        for count, shapes_of in ((1, None), (3, first))
    ]
    return write_bundle(tmp_path_factory.mktemp("two") / "m.hcb", *models)


def test_multi_and_auto_choose_among_devices_and_not_among_shapes(two_devices: Path) -> None:
    with load(two_devices, "MULTI:A,B", requests=1) as session:
        assert session.devices == ("A", "B") and session.requests == 2
        assert [v.name for v in session.variants] == ["A", "A#1", "B#2", "B#3"]
        for count, result in zip((1, 3) * 20, session.stream({"x": rows(n)} for n in (1, 3) * 20), strict=True):
            np.testing.assert_array_equal(result["y"], rows(count) * 3)
    with load(two_devices, "MULTI", profile=True) as session:
        assert session.devices[0] == "A"
        session.run({"x": rows(3)})
        assert session.variant.name == "A#1" and session.profile().runs == 1
        session.clear_profile()
        assert session.profile().runs == 0
    with load(two_devices, "AUTO:A,B") as session:
        assert [v.name for v in session.variants] == ["A", "A#1"]


def test_a_lost_device_is_replaced_for_all_shapes(two_devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Loaded.run

    def run(self: Loaded, *arguments: Any) -> dict[str, Any]:
        if self.devices == ("A",):
            raise DeviceLostError("A is gone")
        return plain(self, *arguments)

    monkeypatch.setattr(Loaded, "run", run)
    with load(two_devices, "A", fallback=True) as session:
        for count in (3, 1, 3):
            np.testing.assert_array_equal(session.run({"x": rows(count)})["y"], rows(count) * 3)
        assert session.devices == ("B",) and session.variant.name == "B#3"
        assert [v.name for v in session.variants] == ["B#2", "B#3"]


def test_close_waits_for_the_code_that_a_request_loads(static: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, began, plain = load(static), threading.Event(), shapes.open_further

    def load_slowly(*arguments: Any, **options: Any) -> Any:
        began.set()
        time.sleep(0.05)
        return plain(*arguments, **options)

    monkeypatch.setattr(shapes, "open_further", load_slowly)
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(session.run, {"x": rows(3)})
        assert began.wait(30)
        session.close()
        # The bundle is closed by then, which is an error of its own unless the run began before.
        try:
            np.testing.assert_array_equal(request.result()["y"], rows(3) * 3)
        except UsageError as error:
            assert "closed" in str(error)
    with pytest.raises(UsageError, match="the session is closed"):
        session.run({"x": rows(3)})


def test_the_inputs_state_the_sizes_that_a_dimension_may_have(static: Path, dynamic: Path) -> None:
    with load(static) as session:
        (x,) = session.inputs
        assert x.shape == ("n", 4) and x.sizes[0] is not None and x.sizes[0].values == (1, 3)
        assert str(x) == "x: float32 [n (1 or 3), 4]" and str(session.outputs[0]) == "y: float32 [n, 4]"
        assert "x: float32 [n (1 or 3), 4]" in repr(session)
    with load(dynamic) as session:
        assert str(session.inputs[0]) == "x: float32 [n (1 to 8), 4]"
        assert 3 in session.inputs[0].sizes[0] and 9 not in session.inputs[0].sizes[0]  # type: ignore[operator]


def test_a_size_that_is_not_a_multiple_is_an_error_with_two_that_are() -> None:
    assert str(Sizes((), Range(min=32, step=32))) == "a multiple of 32"
    assert str(Sizes((), Range(min=32, max=640, step=32))) == "a multiple of 32 up to 640"
    assert str(Sizes((), Range(min=96, max=640, step=32))) == "a multiple of 32 from 96 to 640"
    assert 64 in Sizes((), Range(min=32, step=32)) and 65 not in Sizes((), Range(min=32, step=32))
    info = TensorInfo("x", "float32", ("n", 4), (Sizes((), Range(min=32, max=640, step=32)), None))
    with pytest.raises(FeedError) as caught:
        FeedCheck([info], "m.hcb")({"x": np.zeros((100, 4), np.float32)})
    assert caught.value.message == "dimension 'n' of input 'x' must be a multiple of 32 up to 640, got 100"
    assert caught.value.hint == "give a size such as 96 or 128"


def test_another_size_is_an_error_that_names_the_dimension_and_the_allowed_sizes(static: Path, dynamic: Path) -> None:
    cases = (
        (static, 2, "1 or 3", "--hint n=…,2"),
        (dynamic, 9, "1 to 8", "from 1 to 8; if the model takes others, compile it again with --dim n=1..9"),
        (dynamic, 0, "1 to 8", "give a size of 1 or more"),
    )
    for path, size, words, hint in cases:
        with load(path) as session, pytest.raises(FeedError) as caught:
            session.run({"x": rows(size)})
        assert caught.value.message == f"dimension 'n' of input 'x' must be {words}, got {size}"
        assert hint in caught.value.command_text()


def test_another_rank_or_dtype_is_an_error_as_for_one_shape(static: Path) -> None:
    with load(static) as session:
        with pytest.raises(FeedError, match=r"must have shape \[n \(1 or 3\), 4\], got \[4\]"):
            session.run({"x": rows(1)[0]})
        with pytest.raises(FeedError, match="must have dtype float32, got float64"):
            session.run({"x": rows(1).astype(np.float64)})


def test_arrays_for_results_must_have_the_shape_of_the_request(static: Path) -> None:
    out = np.empty((3, 4), np.float32)
    with load(static) as session:
        assert session.run({"x": rows(3)}, out={"y": out})["y"] is out
        np.testing.assert_array_equal(out, rows(3) * 3)
        with pytest.raises(FeedError, match=r"must be float32 \[1, 4\], got float32 \[3, 4\]"):
            session.run({"x": rows(1)}, out={"y": out})


def test_a_binding_is_for_one_of_the_shapes(static: Path) -> None:
    with load(static) as session:
        assert session.bind().inputs["x"].shape == (1, 4)
        binding = session.bind({"x": (3, 4)})
        binding.inputs["x"][...] = rows(3)
        np.testing.assert_array_equal(binding.run()["y"], rows(3) * 3)
        with pytest.raises(FeedError, match="no code for the shapes x=5,4"):
            session.bind({"x": (5, 4)})
        with pytest.raises(FeedError, match="no input 'z'"):
            session.bind({"z": (5, 4)})
        with pytest.raises(FeedError, match="the shape of 'x' is not a sequence of whole numbers"):
            session.bind({"x": np.zeros((3, 4), np.float32)})  # type: ignore[dict-item]


def test_profile_and_trace_follow_the_shapes_of_the_request(static: Path) -> None:
    seen: list[str] = []
    with load(static, profile=True) as session:
        for count in (1, 3, 3):
            session.run({"x": rows(count)})
        assert session.profile().runs == 2
        session.clear_profile()
        assert session.profile().runs == 0
        session.trace_kernels({"x": rows(3)}, lambda trace: seen.append(trace.symbol))
        assert seen == ["mul", "add"]
        assert session.run_traced({"x": rows(3)})["y"].shape == (3, 4)


def test_threads_may_ask_for_different_shapes_at_once(static: Path) -> None:
    failures: list[BaseException] = []

    def work(count: int) -> None:
        try:
            for _ in range(50):
                np.testing.assert_array_equal(session.run({"x": rows(count)})["y"], rows(count) * 3)
        except BaseException as error:
            failures.append(error)

    with load(static) as session:
        threads = [threading.Thread(target=work, args=(1 + 2 * (i % 2),)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_inputs_of_one_dimension_must_agree_and_combinations_must_exist(tmp_path: Path) -> None:
    def product(n: int | str, m: int | str, shapes_of: str | None = None) -> Model:
        shape = (n, m)
        parts = (Part(0, ("a", "b"), ("y",), (Op("add", "add", ("a", "b"), "y"),)),)
        values = dict.fromkeys(("a", "b", "y"), ("float32", shape))
        return Model(values=values, inputs=("a", "b"), outputs=("y",), parts=parts, shapes_of=shapes_of)

    path = write_bundle(tmp_path / "m.hcb", product(1, 2), product(4, 8, "CPU"))
    with load(path) as session:
        one, other = np.ones((1, 2), np.float32), np.ones((4, 8), np.float32)
        assert session.run({"a": other, "b": other})["y"].sum() == 64
        with pytest.raises(FeedError, match="dimension 'n' is 1 in 'a' and 4 in 'b'"):
            session.run({"a": one, "b": other})
    # dimensions of different names
    path = write_bundle(tmp_path / "k.hcb", product("n", "m"))
    with load(path) as session:
        assert session.run({"a": other, "b": other})["y"].shape == (4, 8)


def test_a_size_that_is_allowed_in_another_combination_names_what_there_is(tmp_path: Path) -> None:
    def pair(n: int, m: int, shapes_of: str | None = None) -> Model:
        parts = tuple(Part(0, (i,), (o,), (Op("copy", "copy", (i,), o),)) for i, o in (("a", "y"), ("b", "z")))
        values = {
            "a": ("float32", (n, 2)),
            "y": ("float32", (n, 2)),
            "b": ("float32", (3, m)),
            "z": ("float32", (3, m)),
        }
        return Model(values=values, inputs=("a", "b"), outputs=("y", "z"), parts=parts, shapes_of=shapes_of)

    path = write_bundle(tmp_path / "m.hcb", pair(1, 5), pair(4, 8, "CPU"))
    with load(path) as session, pytest.raises(FeedError) as caught:
        session.run({"a": np.ones((1, 2), np.float32), "b": np.ones((3, 8), np.float32)})
    assert caught.value.message == "the bundle has no code for the shapes a=1,2; b=3,8 together"
    assert "a=1,2; b=3,5 | a=4,2; b=3,8" in (caught.value.hint or "")


def test_code_for_any_size_returns_new_tensors(dynamic: Path) -> None:
    with load(dynamic) as session:
        kept = [session.run({"x": rows(count)})["y"] for count in (1, 2, 5, 8, 5)]
        for count, result in zip((1, 2, 5, 8, 5), kept, strict=True):
            np.testing.assert_array_equal(result, rows(count) * 3)
            result += 1  # the caller owns it
        assert kept[2] is not kept[4] and not np.shares_memory(kept[2], kept[4])


def test_code_for_any_size_takes_arrays_in_any_layout(dynamic: Path) -> None:
    wide = np.arange(80, dtype=np.float32).reshape(10, 8)
    odd = np.frombuffer(np.arange(41, dtype=np.float32).tobytes()[4:], np.float32)[:20].reshape(5, 4)
    with load(dynamic) as session:
        for array in (wide[::2, ::2], np.asfortranarray(rows(5)), odd, rows(5).astype(">f4")):
            np.testing.assert_array_equal(session.run({"x": array})["y"], array * 3)


def test_dynamic_values_pass_between_partitions_and_reach_traces_and_profiles(tmp_path: Path) -> None:
    def model(n: int | str) -> Model:
        ops = (Op("add", "add", ("x", "x"), "a"),), (Op("mul", "mul", ("a", "x"), "y"),)
        parts = Part(0, ("x",), ("a",), ops[0]), Part(0, ("a", "x"), ("y",), ops[1])
        values = dict.fromkeys(("x", "a", "y"), ("float32", (n, 4)))
        return Model(values=values, inputs=("x",), outputs=("y",), parts=parts)

    path = write_bundle(tmp_path / "m.hcb", model("n"))
    with load(path, profile=True) as session:
        assert str(session.inputs[0]) == "x: float32 [n, 4]" and session.inputs[0].sizes == ()
        for count in (1, 7, 0, 1000):
            np.testing.assert_array_equal(session.run({"x": rows(count)})["y"], 2 * rows(count) ** 2)
        assert session.profile().runs == 4 and session.profile().total_ms > 0
        traced = session.run_traced({"x": rows(3)})
        np.testing.assert_array_equal(traced["a"], 2 * rows(3))
        with pytest.raises(FeedError, match="cannot be bound"):
            session.bind()
        with pytest.raises(FeedError, match="only fixed shapes can be bound"):
            session.bind({"x": (17,)})
        out = rows(3)
        assert session.run({"x": rows(3)}, out={"y": out})["y"] is out
        np.testing.assert_array_equal(out, 2 * rows(3) ** 2)
        with pytest.raises(FeedError, match=r"has the shape \[2, 4\], and the result \[3, 4\]"):
            session.run({"x": rows(3)}, out={"y": rows(2)})
        for wrong in (np.empty((3, 5), np.float32), np.empty(3, np.float32), np.empty((3, 4))):
            with pytest.raises(FeedError, match=r"out\['y'\] must be float32 \[n, 4\]"):
                session.run({"x": rows(3)}, out={"y": wrong})


def test_a_bundle_for_one_shape_has_no_named_dimensions(tmp_path: Path) -> None:
    with load(write_bundle(tmp_path / "m.hcb", chain(1))) as session:
        assert session.inputs[0].sizes == () and len(session.variants) == 1
        assert session.bind({"x": (16,)}).inputs["x"].shape == (16,)
