"""What an interactive user sees of public objects: short text, and HTML in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from heterocc.runtime import devices, load
from heterocc.runtime.feeds import TensorInfo
from heterocc.runtime.notebook import MOST_ROWS, session_html
from tests.runtime import standin

Write = Callable[..., Path]


def test_public_objects_of_a_bundle_of_many_partitions_have_a_short_repr(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(60)), profile=True) as session:
        binding = session.bind()
        feed = {"x": np.zeros(16, np.float32)}
        session.run(feed)
        stream = session.stream([feed])
        traces: list[object] = []
        session.trace_kernels(feed, traces.append)
        shown = [
            session, session.variant, session.bundle, session.bundle.manifest, session.profile(), binding,
            binding.inputs, session.bind(state={"x": session.outputs[0].name}), stream, traces[0],
            devices(), *devices(),
        ]  # fmt: skip
        for found in shown:
            text = repr(found)
            assert len(text) < 300, text
            assert " object at 0x" not in text
        assert repr(binding.inputs) == "<arrays x: float32 [16]>"
        assert len(repr(session.variant.partitions[0])) < 1500


def test_inputs_and_outputs_are_found_by_name(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(3))) as session:
        assert session.inputs["x"] is session.inputs[0]
        assert session.outputs["v2"] == session.outputs[-1]
        assert session.inputs[:1] == (session.inputs[0],)
        with pytest.raises(KeyError, match="no tensor 'v3'; did you mean 'v2'"):
            session.outputs["v3"]
        with pytest.raises(IndexError):
            session.inputs[1]


class Cells(HTMLParser):
    """The texts of a page, and whether it has elements that are not part of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_notebook_shows_the_plan(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(3))) as session:
        page = Cells()
        page.feed(session._repr_html_())
        assert page.tags == {"p", "table", "tr", "th", "td"}
        for text in ("x", "float32", "[16]", "CPU", *(part.name for part in session.variant.partitions)):
            assert text in page.texts


def test_html_is_escaped_and_bounded(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(3))) as session:
        hostile = TensorInfo("<script>alert(1)</script>", "float32", (1,))
        page = Cells()
        page.feed(session_html("<Session>", [hostile] * (MOST_ROWS + 5), [hostile], session.variant))
        assert "script" not in page.tags
        assert "… 6 more" in page.texts
