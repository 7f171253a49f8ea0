"""The HTML report in a browser: how long it takes to open, and the frames while it is moved.

    python benchmarks/compiler/report_page.py [--nodes 40,500,2000,10000] [--json FILE]

Needs Debian's Chromium and Playwright (`make test-browser` installs both). Times are those of the browser: `paint` is
the first contentful paint and `ready` the end of the script, from the start of the navigation; `work` is the
processor time of the page's main thread until then, which other processes change little. Frames are those
while the mouse drags the whole graph, when most is drawn, without a GPU; `draw` is the share of the script.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from heterocc.passes.explain.report import report_html
from tests.browser import main_thread, open_report, running_browser
from tests.passes.explain.reports import explained, measured, network

STEPS = 60


@dataclass(frozen=True, slots=True)
class Opened:
    """Times in milliseconds of a report of `nodes` nodes, by the way in which they are grouped."""

    nodes: int
    grouping: str
    boxes: int
    megabytes: float
    paint: float
    ready: float
    work: float
    frame_median: float
    frame_worst: float
    draw_median: float
    draw_worst: float


WATCH = """() => {
  const view = views.graph, paint = view.paint.bind(view);
  window.watched = { frames: [], draws: [], on: true };
  view.paint = () => { const t = performance.now(); paint(); watched.draws.push(performance.now() - t); };
  let last = 0;
  const frame = (now) => {
    if (last) watched.frames.push(now - last);
    last = now;
    if (watched.on) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""


def dragged(page: Any) -> tuple[list[float], list[float]]:
    """The times of frames, and of drawing, while the mouse drags the graph; sorted."""
    page.evaluate(WATCH)
    page.mouse.move(700, 400)
    page.mouse.down()
    for step in range(STEPS):
        page.mouse.move(700 - 5 * step, 400 - 3 * step)
    page.mouse.up()
    frames, draws = page.evaluate("(watched.on = false, [watched.frames, watched.draws])")
    return sorted(frames), sorted(draws)


def opened(browser: Any, path: Path, nodes: int, grouping: str, megabytes: float) -> Opened:
    """Open a page, note its times, and move its graph as a whole, when most is drawn."""
    clocks: list[Callable[[], float]] = []
    page = open_report(browser, path, lambda page: clocks.append(main_thread(page)))
    work = clocks[0]()
    paint, ready = page.evaluate(
        "[performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0,"
        " performance.getEntriesByName('ready')[0].startTime]"
    )
    page.click("#fit")
    page.wait_for_timeout(200)
    boxes = page.evaluate("views.graph.scene.boxes.length")
    times, draws = dragged(page)
    page.close()
    return Opened(
        nodes, grouping, boxes, megabytes, paint, ready, 1e3 * work, times[len(times) // 2], times[-2],
        draws[len(draws) // 2], draws[-2],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", default="40,500,2000,10000")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    heads = ("nodes", "grouping", "boxes", "MB", "paint", "ready", "work", "frame", "worst", "draw", "worst")
    print("  ".join(h.rjust(8) for h in heads) + "   (ms)")
    with tempfile.TemporaryDirectory() as folder, running_browser() as browser:
        for nodes in map(int, arguments.nodes.split(",")):
            for grouping in ("scope", "none"):
                found = explained(network(nodes, scoped=grouping == "scope"))
                path = Path(folder) / f"{nodes}-{grouping}.html"
                path.write_text(report_html(found, measured(found)), encoding="utf-8")
                rows.append(opened(browser, path, nodes, grouping, path.stat().st_size / 1e6))
                cells = [f"{v:.1f}" if isinstance(v, float) else str(v) for v in asdict(rows[-1]).values()]
                print("  ".join(c.rjust(8) for c in cells), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
