"""Test vectors that are looked for while the compile goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.errors import InputError, UnsupportedOpError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.checking import ahead
from heterocc.compiler.checking.ahead import VectorsAhead
from heterocc.compiler.checking.reference import Reference, Stop
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.endless import endless
from tests.compiler.onnx_build import node
from tests.compiler.small import conv_net, save


def test_vectors_found_ahead_are_those_found_at_once(tmp_path: Path) -> None:
    found = import_model(conv_net(tmp_path / "m.onnx"))
    expected, _ = ahead.vectors_of(found, None, 3, reads=False)
    with VectorsAhead() as vectors:
        begun = vectors.begin(found, None, 3, reads=False)
        assert begun is not None and begun.inputs is None
        got, _ = begun.result.result()
    for name in ("x", "y"):
        np.testing.assert_array_equal(
            {**got.inputs, **got.outputs}[name], {**expected.inputs, **expected.outputs}[name]
        )


def test_only_one_search_is_begun(tmp_path: Path) -> None:
    found = import_model(conv_net(tmp_path / "m.onnx"))
    with VectorsAhead() as vectors:
        assert vectors.begin(found, None, 0, reads=False) is not None
        assert vectors.begin(found, None, 0, reads=False) is None


def test_sizes_that_the_given_inputs_do_not_have_get_seeded_vectors(tmp_path: Path) -> None:
    """The search that was begun for the first sizes is with the file, which is for the second ones."""
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"x": ["n", 3]}, {"y": ["n", 3]})
    np.savez(tmp_path / "x.npz", x=np.full((4, 3), 7, np.float32))
    sets = [{"x": (2, 3)}, {"x": (4, 3)}]
    compile_model(path, tmp_path / "m.hcb", devices="CPU", shape_sets=sets, inputs=tmp_path / "x.npz")
    with open_bundle(tmp_path / "m.hcb") as bundle:
        first, second, _ = (bundle.array(golden.inputs["x"]) for golden in bundle.manifest.all_goldens)
    assert first.shape == (2, 3) and not np.all(first == 7)
    assert second.shape == (4, 3) and np.all(second == 7)


def test_the_end_of_a_compile_ends_a_run_that_nobody_waits_for(tmp_path: Path) -> None:
    found = import_model(endless(tmp_path))
    started = time.monotonic()
    with VectorsAhead() as vectors:
        vectors.begin(found, None, 0, reads=False)
        time.sleep(0.5)
    assert time.monotonic() - started < 30
    assert not any(thread.name.startswith("heterocc-reference") for thread in threading.enumerate())


def test_a_stopped_reference_runs_no_more(tmp_path: Path) -> None:
    stop = Stop()
    stop.now()
    found = import_model(conv_net(tmp_path / "m.onnx"))
    with pytest.raises(InputError):
        Reference(found, found.graph.outputs, stop=stop).run({"x": np.zeros((1, 4, 8, 8), np.float32)})


def test_an_error_of_the_query_comes_first(tmp_path: Path) -> None:
    path = endless(tmp_path, node("StringNormalizer", "words", "lower"))
    with pytest.raises(UnsupportedOpError):
        compile_model(path, tmp_path / "m.hcb", devices="CPU")
    assert not (tmp_path / "m.hcb").exists()
