"""Test vectors that are looked for while the compile goes on."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import InputError, UnsupportedOpError
from heterocc.compiler import compile_model
from heterocc.compiler.checking import ahead
from heterocc.compiler.checking.ahead import VectorsAhead
from heterocc.compiler.checking.reference import Reference, Stop
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.endless import endless
from tests.compiler.onnx_build import node
from tests.compiler.small import conv_net


def test_vectors_found_ahead_are_those_found_at_once(tmp_path: Path) -> None:
    found = import_model(conv_net(tmp_path / "m.onnx"))
    expected, _ = ahead.vectors_of(found, None, 3, reads=False)
    with VectorsAhead() as vectors:
        vectors.begin(found, None, 3, reads=False)
        got, _ = vectors.vectors(found, None, 3, reads=False)
    for name in ("x", "y"):
        np.testing.assert_array_equal(
            {**got.inputs, **got.outputs}[name], {**expected.inputs, **expected.outputs}[name]
        )


def test_another_model_or_file_gets_vectors_of_its_own(tmp_path: Path) -> None:
    path = conv_net(tmp_path / "m.onnx")
    first, second = import_model(path), import_model(path)
    np.savez(tmp_path / "x.npz", x=np.full((1, 4, 8, 8), 2, np.float32))
    with VectorsAhead() as vectors:
        vectors.begin(first, None, 0, reads=False)
        given, _ = vectors.vectors(first, tmp_path / "x.npz", 0, reads=False)
        assert np.all(given.inputs["x"] == 2)
        assert vectors.vectors(second, None, 0, reads=False)[0] is not vectors.vectors(first, None, 0, reads=False)[0]


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
