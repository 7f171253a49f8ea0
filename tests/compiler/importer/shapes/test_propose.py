"""The shapes of drawn inputs: plausible ones, but no run that takes gigabytes or minutes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.artifacts.errors import DynamicShapeError
from heterocc.artifacts.packed import PackedArray
from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.estimates.runs import MOST_WORK, Work, work_of
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.importer.shapes import propose, trials
from heterocc.compiler.importer.shapes.propose import Proposals, Samples
from heterocc.compiler.importer.shapes.trials import Shapes
from tests.fresh_process import fresh
from tests.symbolic_models import dynamic_model

N = helper.make_node


def attention_over_pixels(channels: int = 8) -> onnx.ModelProto:
    """Scores of each pixel for each other: the fourth power of an image's side."""
    nodes = [
        N("Shape", ["x"], ["s"]),
        N("Reshape", ["x", "flat"], ["k"]),
        N("Transpose", ["k"], ["q"], perm=[0, 2, 1]),
        N("MatMul", ["q", "k"], ["scores"]),
        N("Softmax", ["scores"], ["p"], axis=-1),
        N("MatMul", ["k", "p"], ["v"]),
        N("Reshape", ["v", "s"], ["y"]),
    ]
    shape = ("batch", channels, "height", "width")
    return dynamic_model(nodes, {"x": ("float32", shape)}, ["y"], {"flat": np.array([0, channels, -1])})


def convolutions(count: int, channels: int) -> onnx.ModelProto:
    nodes = [N("Conv", [f"v{n}" if n else "x", "w"], [f"v{n + 1}"], pads=[1, 1, 1, 1]) for n in range(count)]
    weight = np.ones((channels, channels, 3, 3), np.float32)
    return dynamic_model(nodes, {"x": ("float32", (1, channels, "h", "w"))}, [f"v{count}"], {"w": weight})


def test_weights_of_four_bits_stay_packed_in_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dynamic_model(
        [N("DequantizeLinear", ["w", "scale"], ["wide"]), N("MatMul", ["x", "wide"], ["y"])],
        {"x": ("float32", ("n", 64))},
        ["y"],
        {},
    )
    model.opset_import[0].version, model.ir_version = 21, 10
    packed = PackedArray(np.zeros(64 * 64 // 2, np.uint8), (64, 64), np.dtype(ml_dtypes.int4), is_signed=True)
    monkeypatch.delattr(PackedArray, "__array__")
    weights = cast(dict[str, np.ndarray], {"w": packed, "scale": np.array(0.5, np.float32)})
    found = Proposals(Draft(model, weights)).first(lambda shapes: Work(0, 0))
    assert found is not None and found["x"][1] == 64


def test_shapes_are_found_for_a_model_of_more_than_two_gigabytes(tmp_path: Path) -> None:
    """It would not be checked; its weights are read where they are."""
    rows = 1 << 17
    table = np.memmap(tmp_path / "zeros", np.float32, "w+", shape=(rows, 4608))  # takes no space
    nodes = [N("Gather", ["table", "ids"], ["rows"]), N("Cast", ["rows"], ["y"], to=onnx.TensorProto.FLOAT)]
    model = dynamic_model(nodes, {"ids": ("int64", ("tokens",))}, ["y"], {})
    found = Proposals(Draft(model, {"table": table})).first(lambda shapes: Work(0, 0))
    assert table.nbytes > 1 << 31 and found is not None


def test_models_whose_weights_onnx_runtime_has_to_pack_for_the_check_have_a_limit(tmp_path: Path) -> None:
    """It makes a second copy of all of them."""
    codes = np.memmap(tmp_path / "zeros", np.uint8, "w+", shape=(1 << 17, 1 << 9, 32 + 1))  # takes no space
    attributes = {"K": 1 << 15, "N": 1 << 17, "bits": 4, "block_size": 64, "domain": "com.microsoft"}
    tried: list[int] = []

    def not_opened(level: int, *_: object, **__: object) -> None:
        tried.append(level)
        raise RuntimeError("ONNX Runtime cannot load it")

    for level in (4, 1):
        nodes = [N("MatMulNBits", ["x", "codes", "scales"], ["y"], accuracy_level=level, **attributes)]
        model = dynamic_model(nodes, {"x": ("float32", ("n", 1 << 15))}, ["y"], {})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trials, "open_session", partial(not_opened, level))
            patch.setattr(trials, "longest_text", lambda *_: 0)
            assert trials.runner(model, {"codes": codes}) is None
    assert codes.nbytes > trials.MAX_PACKED and tried == [1]


def work_at_samples(model: ImportedModel) -> Work:
    typical = model.typical
    assert typical is not model
    return work_of(typical.graph, typical.proto.graph.node, 1)


@pytest.mark.parametrize("model", [attention_over_pixels(), convolutions(40, 64)], ids=["memory", "operations"])
def test_sizes_with_which_a_run_is_too_much_work_are_not_tried(model: onnx.ModelProto) -> None:
    imported = import_model(model, keep_dims=True, assume=True)
    assert work_at_samples(imported).within(MOST_WORK)
    side = imported.samples["x"][2]
    assert side % 2 == 1 and 30 < side < 224


def test_images_of_the_usual_size_are_drawn_where_a_run_is_short() -> None:
    assert import_model(convolutions(2, 4), keep_dims=True).samples["x"] == (1, 4, 224, 224)


def test_the_sizes_that_an_error_proposes_are_bounded_too() -> None:
    with pytest.raises(DynamicShapeError) as caught:
        import_model(attention_over_pixels())
    assert "--dim batch=1 --dim height=33 --dim width=33" in caught.value.command_text()


def test_work_counts_what_is_alive_together() -> None:
    nodes = [N("Relu", [f"v{n}" if n else "x"], [f"v{n + 1}"]) for n in range(10)]
    model = dynamic_model(nodes, {"x": ("float32", (1000,))}, ["v10"], {})
    imported = import_model(model)
    assert work_of(imported.graph, imported.proto.graph.node, 1) == Work(10_000, 12_000)


@pytest.mark.slow
def test_a_compile_of_a_small_model_of_large_images_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    onnx.save(attention_over_pixels(), tmp_path / "m.onnx")
    paths = [str(tmp_path / name) for name in ("m.onnx", "m.hcb")]
    program = f"""
from heterocc.compiler import compile_model
from tests.fresh_process import peak
compile_model(*{paths!r}, devices="CPU")
print(peak())
"""
    assert int(fresh(program)) < 1 << 20


@pytest.mark.parametrize("name", ["total_sequence", "mask"])
def test_a_size_that_is_the_sum_of_two_others_is_found(name: str) -> None:
    """As in decoders: ONNX Runtime runs them only with a mask for the earlier tokens and the new ones."""
    inputs = {"past": ("float32", (1, "earlier", 4)), "new": ("float32", (1, "tokens", 4))}
    nodes = [N("Concat", ["past", "new"], ["all"], axis=1), N("Mul", ["all", "m"], ["y"])]
    mask = {"m": ("float32", (1, name, 1))}
    samples = import_model(dynamic_model(nodes, inputs | mask, ["y"], {}), keep_dims=True).samples
    assert samples["m"][1] == samples["past"][1] + samples["new"][1]


def caches_and_mask(count: int) -> onnx.ModelProto:
    """torch's exporter gives each layer's past keys and values a name, and the mask one, too."""
    caches = {f"past{n}": ("float32", (1, 1, f"earlier{n}", 1)) for n in range(count)}
    inputs = {"tokens": ("float32", (1, "new")), "m": ("float32", (1, "mask"))}
    nodes = [N("Unsqueeze", ["tokens", "axes"], ["keys"])]
    nodes += [N("Concat", [name, "keys"], [f"{name}_all"], axis=2) for name in caches]
    nodes.append(N("Sum", [f"{name}_all" for name in caches], ["sum"]))
    nodes.append(N("Unsqueeze", ["m", "axes"], ["wide"]))
    nodes.append(N("Mul", ["sum", "wide"], ["y"]))
    return dynamic_model(nodes, {**inputs, **caches}, ["y"], {"axes": np.array([1, 3])})


def test_caches_with_names_of_their_own_get_one_size() -> None:
    samples = import_model(caches_and_mask(6), keep_dims=True).samples
    assert len({samples[f"past{n}"] for n in range(6)}) == 1
    assert samples["m"][1] == samples["past0"][2] + samples["tokens"][1]


def test_one_size_of_all_caches_is_tried_before_others() -> None:
    """Each trial of a large model takes a part of a second, and all together SECONDS."""
    tried: list[Shapes] = []

    def work(shapes: Shapes) -> Work:
        tried.append(shapes)
        return Work(0, 0)

    assert Proposals(Draft(caches_and_mask(3), {})).first(work) == tried[-1]
    assert len(tried) <= 4


def test_a_run_that_takes_too_long_is_followed_by_ones_of_much_smaller_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine: the model would be compiled without a check."""
    monkeypatch.setattr(propose, "SECONDS", 0.05)
    tried: list[int] = []

    def runner(*_: object) -> Callable[[Shapes, float], bool]:
        def run(shapes: Shapes, seconds: float) -> bool:
            tried.append(shapes["x"][2])
            if tried[-1] > 100:
                end = time.thread_time() + seconds + 0.01
                while time.thread_time() < end:
                    pass
            return tried[-1] % 8 == 0 and tried[-1] < 100

        return run

    monkeypatch.setattr(propose, "runner", runner)
    found = Proposals(Draft(convolutions(2, 4), {})).first(lambda _: Work(0, 0))
    assert tried == [224, 65, 64]
    assert found == {"x": [1, 4, 64, 64]}


def test_what_other_processes_take_is_not_time_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with fourteen other processes models were compiled without a check."""
    monkeypatch.setattr(propose, "SECONDS", 0.05)
    tried: list[int] = []

    def runner(*_: object) -> Callable[[Shapes, float], bool]:
        def run(shapes: Shapes, _: float) -> bool:
            tried.append(shapes["x"][2])
            time.sleep(0.06)
            return tried[-1] == 256

        return run

    monkeypatch.setattr(propose, "runner", runner)
    found = Proposals(Draft(convolutions(2, 4), {})).first(lambda _: Work(0, 0))
    assert found == {"x": [1, 4, 256, 256]} and tried == [224, 256]


def test_a_trial_of_too_much_work_ends() -> None:
    values = np.zeros((64, 64), np.float32)
    nodes = [N("MatMul", ["x" if n == 0 else f"v{n}", "w"], [f"v{n + 1}"]) for n in range(400)]
    run = trials.runner(dynamic_model(nodes, {"x": ("float32", ("n", 64))}, ["v400"], {"w": values}), {})
    assert run is not None and run({"x": [1, 64]}, 5.0)
    assert not run({"x": [20000, 64]}, 0.1)


def test_a_model_that_takes_much_at_all_sizes_is_tried_at_its_smallest() -> None:
    """A network of ten seconds of speech takes more than others may, with a batch of 1: it was not checked."""

    def work(shapes: Shapes) -> Work:
        return Work(MOST_WORK.flops * 2 * shapes["x"][2], 0)

    proposals = Proposals(Draft(convolutions(2, 4), {}))
    assert proposals.first(work) == {"x": [1, 4, 1, 1]}
    assert proposals.first(lambda _: Work(MOST_WORK.flops * 9, 0)) is None


def test_the_only_dimension_of_a_state_without_a_name_may_be_the_batch() -> None:
    """A voice detector's state, `[2, ?, 128]`, had as many columns as its input samples, and no run succeeded."""
    nodes = [
        N("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        N("LSTM", ["t", "w", "r", "", "", "h"], ["y"], hidden_size=2),
    ]
    weights = {"w": np.ones((1, 8, 3), np.float32), "r": np.ones((1, 8, 2), np.float32)}
    inputs = {"x": ("float32", (None, None, 3)), "h": ("float32", (1, None, 2))}
    model = import_model(dynamic_model(nodes, inputs, ["y"], weights), keep_dims=True)
    assert dict(model.samples) == {"x": (1, 128, 3), "h": (1, 1, 2)}


@pytest.mark.parametrize(("dtype", "seconds"), [("uint8", 38), ("float32", 6)])
def test_a_model_with_many_codes_has_more_time(dtype: str, seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime dequantises them in each trial: one of 80 MB was compiled without a check on a loaded machine."""
    given: list[float] = []

    def runner(*_: object) -> Callable[[Shapes, float], bool]:
        return lambda _, limit: not given.append(limit)

    monkeypatch.setattr(propose, "runner", runner)
    weights = {"codes": np.broadcast_to(np.zeros((), dtype), (1 << 28) // np.dtype(dtype).itemsize)}
    Proposals(Draft(convolutions(2, 4), weights)).first(lambda _: Work(0, 0))
    assert round(given[0]) == seconds


def test_models_with_weights_of_4_bits_are_tried() -> None:
    table = helper.make_tensor("t", onnx.TensorProto.UINT4, [40, 64], np.arange(40 * 64) % 16)
    scales = helper.make_tensor("s", onnx.TensorProto.FLOAT, [40, 2], np.ones(80))
    node = N("GatherBlockQuantized", ["t", "i", "s"], ["y"], domain="com.microsoft", block_size=32)
    model = dynamic_model([node], {"i": ("int64", (1, "tokens"))}, ["y"], {})
    model.graph.initializer.extend([table, scales])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None))
    model.ir_version = 10
    model.opset_import[0].version, model.ir_version = 21, 10
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert import_model(model, keep_dims=True).samples["i"] == (1, 128)


def test_two_threads_that_need_sizes_do_not_wait_for_each_other() -> None:
    """One searches sizes, for which it asks for the work at them; another asks for the work at the same sizes."""
    imported = import_model(convolutions(1, 4), keep_dims=True)
    found, begun, asked = dict(imported.samples), threading.Event(), threading.Event()

    def search() -> dict[str, tuple[int, ...]]:
        begun.set()
        asked.wait(5)
        time.sleep(0.2)  # the other thread waits for these sizes by now
        work_at_samples(replace(imported, samples=found))
        return found

    searched = replace(imported, samples=Samples(search))
    first = threading.Thread(target=lambda: len(searched.samples), daemon=True)
    second = threading.Thread(target=lambda: (begun.wait(5), asked.set(), searched.typical), daemon=True)
    for thread in (first, second):
        thread.start()
    for thread in (first, second):
        thread.join(10)
    assert not first.is_alive() and not second.is_alive()
