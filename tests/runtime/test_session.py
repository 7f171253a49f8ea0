from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import (
    BundleHashError,
    FeedError,
    FileMissingError,
    IncompatibleBundleError,
    UnknownDeviceError,
    UsageError,
)
from heterocc.artifacts.manifest import Device
from heterocc.runtime import TensorInfo, load
from tests.runtime import standin
from tests.runtime.standin import Model, Op, Part

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32)


def two_outputs() -> Model:
    """s = a + b and p = a * b, in two partitions; c is never read, k is a constant, a is also an output."""
    return Model(
        values=dict.fromkeys(("a", "b", "c", "s", "p", "k"), ("float32", (4, 4))),
        inputs=("a", "b", "c"),
        outputs=("s", "p", "a", "k"),
        parts=(
            Part(0, ("a", "b"), ("s",), (Op("add", "add", ("a", "b"), "s"),)),
            Part(0, ("a", "b"), ("p",), (Op("mul", "mul", ("a", "b"), "p"),)),
        ),
        weights={"w": np.full((4, 4), 7, np.float32)},
        constants={"k": "w"},
    )


def feed_of_two_outputs() -> dict[str, np.ndarray]:
    a = np.arange(16, dtype=np.float32).reshape(4, 4)
    return {"a": a, "b": a + 1, "c": a}


def test_a_chain_of_partitions_gives_the_right_numbers(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(3))) as session:
        np.testing.assert_array_equal(session.run({"x": X})["v2"], X + 3)


def test_a_session_lists_its_inputs_and_outputs_in_model_order(bundle_of: Write) -> None:
    with load(bundle_of(two_outputs())) as session:
        assert session.inputs == tuple(TensorInfo(n, "float32", (4, 4)) for n in "abc")
        assert [o.name for o in session.outputs] == ["s", "p", "a", "k"]
        assert session.devices == ("CPU",)
        assert session.variant.name == "CPU"


def test_the_repr_says_model_devices_inputs_and_outputs(bundle_of: Write) -> None:
    session = load(bundle_of(standin.chain(2)))
    assert repr(session) == (
        "<Session of 'standin.onnx' on CPU (2 partitions): (x: float32 [16]) -> (v1: float32 [16])>"
    )
    session.close()
    assert repr(session).startswith("<closed Session")


def test_passed_through_constant_and_unused_values_are_legal(bundle_of: Write) -> None:
    feed = feed_of_two_outputs()
    with load(bundle_of(two_outputs())) as session:
        got = session.run(feed)
    assert list(got) == ["s", "p", "a", "k"]
    np.testing.assert_array_equal(got["s"], feed["a"] + feed["b"])
    np.testing.assert_array_equal(got["p"], feed["a"] * feed["b"])
    np.testing.assert_array_equal(got["a"], feed["a"])
    np.testing.assert_array_equal(got["k"], np.full((4, 4), 7, np.float32))


def test_results_are_the_callers_own(bundle_of: Write) -> None:
    feed = feed_of_two_outputs()
    with load(bundle_of(two_outputs())) as session:
        first = session.run(feed)
        for array in first.values():
            array.fill(-1)
        again = session.run(feed)
    np.testing.assert_array_equal(again["k"], np.full((4, 4), 7, np.float32))
    np.testing.assert_array_equal(again["s"], feed["a"] + feed["b"])
    assert feed["a"][0, 1] == 1


def test_a_model_without_partitions_runs(bundle_of: Write) -> None:
    model = Model(values={"x": ("int64", (3,))}, inputs=("x",), outputs=("x",), parts=())
    with load(bundle_of(model)) as session:
        np.testing.assert_array_equal(session.run({"x": np.arange(3)})["x"], np.arange(3))


def test_one_value_may_be_two_outputs(bundle_of: Write) -> None:
    model = replace(standin.chain(1), outputs=("v0", "v0"))
    with load(bundle_of(model)) as session:
        first, second = session.run(None, {"x": X})
    np.testing.assert_array_equal(first, X + 1)
    np.testing.assert_array_equal(second, X + 1)
    assert first is not second


def test_the_form_of_onnx_runtime_gives_a_list(bundle_of: Write) -> None:
    feed = feed_of_two_outputs()
    with load(bundle_of(two_outputs())) as session:
        assert [a.shape for a in session.run(None, feed)] == [(4, 4)] * 4
        p, s = session.run(["p", "s"], feed)
        np.testing.assert_array_equal(p, feed["a"] * feed["b"])
        np.testing.assert_array_equal(s, feed["a"] + feed["b"])
        with pytest.raises(FeedError, match="the model has no output 'q'"):
            session.run(["q"], feed)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 5)])
def test_shapes_without_dimensions_or_elements_run(bundle_of: Write, shape: tuple[int, ...]) -> None:
    with load(bundle_of(standin.chain(2, shape))) as session:
        x = np.full(shape, 5, np.float32)
        got = session.run({"x": x})["v1"]
    assert got.shape == shape
    np.testing.assert_array_equal(got, x + 2)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int32", "int16", "int8", "uint64", "uint8"])
def test_every_number_type_passes_through_compiled_partitions(bundle_of: Write, dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    with load(bundle_of(standin.chain(2, (2, 3), dtype=dtype))) as session:
        got = session.run({"x": x})["v1"]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, x + 2)


def test_booleans_pass_through_compiled_partitions(bundle_of: Write) -> None:
    model = Model(
        values=dict.fromkeys("aby", ("bool", (4,))),
        inputs=("a", "b"),
        outputs=("y",),
        parts=(Part(0, ("a", "b"), ("y",), (Op("both", "and", ("a", "b"), "y"),)),),
    )
    a, b = np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool)
    with load(bundle_of(model)) as session:
        np.testing.assert_array_equal(session.run({"a": a, "b": b})["y"], a & b)


def test_arrays_in_any_memory_layout_are_accepted(bundle_of: Write) -> None:
    raw = np.zeros(16 * 4 + 1, np.uint8)
    layouts = [
        np.arange(32, dtype=np.float32)[::2],
        np.arange(16, dtype=np.float32)[::-1],
        raw[1:].view(np.float32),
        np.broadcast_to(np.float32(3), (16,)),
    ]
    with load(bundle_of(standin.chain(1))) as session:
        for x in layouts:
            np.testing.assert_array_equal(session.run({"x": x})["v0"], x + 1)


def test_a_bad_feed_is_refused_and_leaves_the_session_usable(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(1))) as session:
        with pytest.raises(FeedError, match="input 'x' must have shape"):
            session.run({"x": np.zeros(3, np.float32)})
        np.testing.assert_array_equal(session.run({"x": X})["v0"], X + 1)


def test_outputs_can_be_written_into_the_callers_arrays(bundle_of: Write) -> None:
    feed, s = feed_of_two_outputs(), np.zeros((8, 4), np.float32)[::2]
    with load(bundle_of(two_outputs())) as session:
        got = session.run(feed, out={"s": s})
    assert got["s"] is s
    np.testing.assert_array_equal(s, feed["a"] + feed["b"])
    np.testing.assert_array_equal(got["p"], feed["a"] * feed["b"])


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"s": np.zeros((4, 4))}, "must be float32"),
        ({"s": np.zeros((4,), np.float32)}, "got float32 [4]"),
        ({"q": np.zeros((4, 4), np.float32)}, "the model has no output 'q'"),
        ({"s": [1.0]}, "must be a numpy array"),
        ({"s": np.broadcast_to(np.float32(0), (4, 4))}, "read-only"),
    ],
)
def test_an_unfit_array_for_an_output_is_refused(bundle_of: Write, out: dict[str, np.ndarray], message: str) -> None:
    with load(bundle_of(two_outputs())) as session, pytest.raises(FeedError, match=re.escape(message)):
        session.run(feed_of_two_outputs(), out=out)


def test_a_binding_runs_on_the_sessions_own_memory(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(3))) as session:
        binding = session.bind()
        np.testing.assert_array_equal(binding.run()["v2"], np.full(16, 3, np.float32))
        binding.inputs["x"][...] = X
        before = binding.outputs["v2"]
        assert binding.run()["v2"] is before
        np.testing.assert_array_equal(before, X + 3)
        session.run({"x": X * 0})
        np.testing.assert_array_equal(before, X + 3)
        np.testing.assert_array_equal(binding.inputs["x"], X)
        assert binding.inputs["x"].ctypes.data % 64 == 0


def test_an_array_that_is_assigned_to_an_input_of_a_binding_is_checked_and_copied(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(3))) as session:
        binding = session.bind()
        held, given = binding.inputs["x"], X.copy()
        binding.inputs["x"] = given
        assert binding.inputs["x"] is held
        np.testing.assert_array_equal(binding.run()["v2"], X + 3)
        binding.inputs["x"] += 1
        given[...] = 0
        np.testing.assert_array_equal(binding.run()["v2"], X + 4)
        for wrong, message in ((X.astype(np.float64), "float64"), (X[:3], "shape"), ([1.0] * 16, "numpy array")):
            with pytest.raises(FeedError, match=message):
                binding.inputs["x"] = wrong
        with pytest.raises(FeedError, match="the model has no input 'y'"):
            binding.inputs["y"] = X
        np.testing.assert_array_equal(binding.run()["v2"], X + 4)


def test_the_arrays_of_a_binding_are_not_replaced_by_others(bundle_of: Write) -> None:
    """A run would read and write the old ones."""
    with load(bundle_of(standin.chain(1))) as session:
        binding = session.bind()
        for name in ("inputs", "outputs"):
            with pytest.raises(AttributeError, match="no setter"):
                setattr(binding, name, {})


@pytest.mark.parametrize("given", [[np.ones(2)], "x", 5])
def test_what_is_bound_has_names(bundle_of: Write, given: object) -> None:
    with load(bundle_of(standin.chain(1))) as session:
        for arguments in ({"shapes": given}, {"state": given}):
            with pytest.raises(FeedError, match="by the names of inputs"):
                session.bind(**arguments)  # type: ignore[call-overload]


def test_outputs_of_a_binding_cannot_be_replaced(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(3))) as session:
        binding = session.bind()
        for name, message in (("v2", "the array of output 'v2' cannot be replaced"), ("v9", "has no output 'v9'")):
            with pytest.raises(FeedError, match=message):
                binding.outputs[name] = X
        assert list(binding.outputs) == ["v2"] and len(binding.inputs) == 1
        np.testing.assert_array_equal(binding.run()["v2"], np.full(16, 3, np.float32))


def test_a_closed_session_says_so(bundle_of: Write) -> None:
    session = load(bundle_of(standin.chain(1)))
    session.close()
    session.close()
    with pytest.raises(UsageError, match="the session is closed"):
        session.run({"x": X})


def test_opening_and_closing_sessions_keeps_no_file_open_and_never_runs_old_code(bundle_of: Write) -> None:
    closed, paths = [], set()
    for number in range(6):
        model = standin.chain(1 + number % 3)
        path = bundle_of(model)
        paths.add(str(path.resolve()))
        with load(path) as session:
            np.testing.assert_array_equal(session.run({"x": X})[model.outputs[0]], X + 1 + number % 3)
            assert paths & open_files()
        closed.append(session)  # a closed session holds no file, even while the caller holds the session
        assert not paths & open_files()


def open_files() -> set[str]:
    return {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}


# ---- choosing a variant -------------------------------------------------------------------------------------------

ELSEWHERE = Device(name="GPU", backend="vulkan", index=99)


def test_the_first_variant_that_can_run_is_taken_and_the_others_are_noted(
    bundle_of: Write, caplog: pytest.LogCaptureFixture
) -> None:
    missing = replace(standin.chain(1), devices=(standin.CPU, ELSEWHERE))
    missing = replace(missing, parts=(*missing.parts, Part(1, ("v0",), ("y",), code=b"unused")))
    missing = replace(missing, values={**missing.values, "y": ("float32", (16,))})
    with caplog.at_level(logging.WARNING), load(bundle_of(missing, standin.chain(1))) as session:
        assert session.devices == ("CPU",)
        np.testing.assert_array_equal(session.run({"x": X})["v0"], X + 1)
    assert session.notes[0].startswith("the variant for CPU,GPU cannot run here: device GPU")
    assert session.notes[-1] == "runs on CPU instead"
    assert "cannot run here" in caplog.text


def test_a_variant_is_chosen_by_its_labels(bundle_of: Write) -> None:
    path = bundle_of(standin.chain(2), replace(standin.chain(2), devices=(Device(name="CPU2", backend="cpu"),)))
    with load(path, "CPU2") as session:
        assert session.devices == ("CPU2",)
    with load(path, ["CPU"]) as session:
        assert session.devices == ("CPU",)


def test_devices_that_no_variant_is_for_are_an_error_that_lists_the_variants(bundle_of: Write) -> None:
    with pytest.raises(UnknownDeviceError, match="no variant for GPU,CPU") as caught:
        load(bundle_of(standin.chain(1)), "GPU,CPU")
    assert caught.value.hint == "it has variants for: CPU"


def test_a_bundle_of_which_nothing_can_run_here_says_why(bundle_of: Write) -> None:
    far = replace(standin.chain(1), devices=(Device(name="CPU", backend="cpu", arch="riscv64"),))
    with pytest.raises(IncompatibleBundleError) as caught:
        load(bundle_of(far))
    assert "riscv64" in str(caught.value.hint)
    with pytest.raises(IncompatibleBundleError, match="riscv64"):
        load(bundle_of(far), "CPU")


def test_a_missing_file_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError):
        load(tmp_path / "nowhere.hcb")


# ---- threads ------------------------------------------------------------------------------------------------------


def test_the_compiles_property_sets_the_threads_and_the_caller_overrides_it(bundle_of: Write) -> None:
    one = replace(standin.chain(1), devices=(Device(name="CPU", backend="cpu", properties={"threads": "1"}),))
    with load(bundle_of(one)) as session:
        assert session.threads == 1
    with load(bundle_of(standin.chain(1)), threads=1) as session:
        assert session.threads == 1
        np.testing.assert_array_equal(session.run({"x": X})["v0"], X + 1)


def test_more_threads_than_are_available_are_noted(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(1)), threads=4096) as session:
        assert session.threads < 4096
        assert any("4096 threads were requested" in note for note in session.notes)


@pytest.mark.parametrize("threads", [0, -1, 1.5])
def test_a_senseless_number_of_threads_is_refused(bundle_of: Write, threads: int) -> None:
    with pytest.raises(UsageError, match="threads must be a positive number"):
        load(bundle_of(standin.chain(1)), threads=threads)


# ---- verification -------------------------------------------------------------------------------------------------


def damaged(path: Path, needle: bytes) -> Path:
    data = bytearray(path.read_bytes())
    at = data.index(needle)
    data[at] ^= 1
    path.write_bytes(bytes(data))
    return path


def heavy() -> tuple[Model, bytes]:
    model = standin.chain(1, (64,))
    weight = np.arange(64, dtype=np.float32) * 1.25 + 3
    return replace(model, weights={"w": weight}), weight.tobytes()


def test_damaged_weights_are_found_before_anything_runs(bundle_of: Write) -> None:
    model, needle = heavy()
    with load(damaged(bundle_of(model), needle)) as session:
        for _ in range(2):
            with pytest.raises(BundleHashError):
                session.run({"x": np.zeros(64, np.float32)})
        with pytest.raises(BundleHashError):
            session.wait_verified()
        with pytest.raises(BundleHashError):
            session.bind().run()
        with pytest.raises(BundleHashError):
            session.run_traced({"x": np.zeros(64, np.float32)})


def test_damaged_weights_are_found_by_load_on_request(bundle_of: Write) -> None:
    model, needle = heavy()
    with pytest.raises(BundleHashError):
        load(damaged(bundle_of(model), needle), verify="load")


def test_damaged_code_is_always_found_by_load(bundle_of: Write) -> None:
    with pytest.raises(BundleHashError, match="code/"):
        load(damaged(bundle_of(standin.chain(1)), b"\x7fELF"))


def test_an_unknown_way_to_verify_is_refused(bundle_of: Write) -> None:
    with pytest.raises(UsageError, match="verify must be"):
        load(bundle_of(standin.chain(1)), verify="never")  # type: ignore[arg-type]


def test_a_text_in_place_of_a_list_of_outputs_is_named(bundle_of: Write) -> None:
    with load(bundle_of(two_outputs())) as session:
        with pytest.raises(FeedError, match="are a list, not the text 's'") as error:
            session.run("s", feed_of_two_outputs())
        assert "run(['s'], feed)" in str(error.value.hint)


def test_arrays_and_numbers_in_place_of_outputs_by_name_are_refused(bundle_of: Write) -> None:
    feed = feed_of_two_outputs()
    with load(bundle_of(two_outputs())) as session:
        for names in (next(iter(feed.values())), 5, [5]):
            with pytest.raises(FeedError, match=r"must be a list, got (ndarray|int)|no output '5'"):
                session.run(names, feed)  # type: ignore[call-overload]
        assert len(session.run(iter(["s"]), feed)) == 1  # type: ignore[call-overload]
        for out in ([next(iter(feed.values()))], next(iter(feed.values())), 5):
            with pytest.raises(FeedError, match="out must be a mapping from names of outputs to arrays"):
                session.run(feed, out=out)
