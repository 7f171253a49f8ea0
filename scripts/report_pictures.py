"""Write the pictures of docs/report.md into docs/pictures, from real runs: a sentence encoder on a GPU and the CPU.

    python scripts/report_pictures.py

It compiles the model for OpenCL and the CPU, with the normalisations on the CPU, and for the CPU alone, profiles both,
and photographs the reports in Chromium (`make test-browser` installs it). Times differ from run to run.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PICTURES = ROOT / "docs" / "pictures"
MODEL = "paraphrase_minilm_l3"
SIZES = ("--dim", "batch_size=1", "--dim", "sequence_length=32")
AFFINITY = '[ops]\n"LayerNormalization" = "CPU"\n'
WINDOW = {"width": 1280, "height": 760}


def report(folder: Path, name: str, *arguments: str) -> Path:
    """The report on a profiled bundle."""
    from benchmarks.dynamic_sizes.models import catalogue

    bundle, page = f"{name}.hcb", f"{name}.html"
    heterocc = [sys.executable, "-m", "heterocc.compiler.cli"]
    (model,) = (row.path() for row in catalogue() if row.name == MODEL)
    subprocess.run(
        [*heterocc, "compile", model, "-o", bundle, *SIZES, "--no-measure", *arguments], check=True, cwd=folder
    )
    bench = ["bench", bundle, "-n", "20", "-t", "1", "--profile", "--report", page]
    subprocess.run([*heterocc, *bench], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    return folder / page


def graph(page: Any, _: Path) -> None:
    """A layer, with a node selected."""
    page.evaluate("""() => {
      const g = views.graph, opens = ["model", "model.0/auto_model", "encoder", "layer.0", "attention", "output"];
      eachGroup(g.tree.root, (group) => {
        group.open = opens.includes(group.name) && !/layer.[12]/.test(group.path);
        group.arranged = null;
      });
      changed(g.tree.root);
      g.arrange();
    }""")
    page.evaluate("""() => {
      const g = views.graph;
      g.show(g.model.nodes.find((n) => n.op === "LayerNormalization" && n.label.includes("layer.0")).i);
      [g.view.zoom, g.view.x, g.view.y] = [0.8, 1e5, 1e5];
      g.reveal(g.box);
    }""")


def times(page: Any, _: Path) -> None:
    """All layers, coloured by time, in the dark."""
    page.select_option("#colour", "time")
    page.click("#fit")


def timeline(page: Any, _: Path) -> None:
    """A part of a run, with a kernel selected."""
    page.click("[data-panel=timeline]")
    page.evaluate("""() => {
      const t = views.timeline;
      [t.from, t.to] = [t.end * 0.3, t.end * 0.65];
      t.draw();
      t.pick(t.items.filter((i) => i.kind === "kernel" && i.start > t.from && i.start + i.us < t.to)
        .reduce((a, b) => (b.us > a.us ? b : a)));
    }""")


def sums(page: Any, _: Path) -> None:
    """Times by operator and by module."""
    page.click("[data-panel=sums]")


def compare(page: Any, other: Path) -> None:
    """The GPU and the CPU side by side."""
    page.click("[data-panel=compare]")
    page.set_input_files("#other", other)
    page.wait_for_selector("#compared:not([hidden])")
    page.click("#comparenodes tbody tr >> nth=0")
    page.evaluate("document.getElementById('panels').scrollTop = 0")


def save(data: bytes, target: Path) -> None:
    """Write a picture in 200 colours: half of the bytes."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as picture:
        picture.convert("RGB").quantize(200, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            target, optimize=True
        )


SHOTS: tuple[tuple[str, str, Callable[[Any, Path], None]], ...] = (
    ("graph", "light", graph),
    ("times", "dark", times),
    ("timeline", "light", timeline),
    ("sums", "light", sums),
    ("compare", "light", compare),
)


def main() -> None:
    """Write all pictures."""
    from tests.browser import open_report, running_browser

    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work, running_browser() as browser:
        folder = Path(work)
        (folder / "place.toml").write_text(AFFINITY)
        both = report(folder, "both", "-d", "OPENCL,CPU", "--policy", "greedy", "--affinity", "place.toml")
        alone = report(folder, "cpu", "-d", "CPU")
        for name, scheme, arrange in SHOTS:
            page = open_report(browser, both, viewport=WINDOW, color_scheme=scheme)
            arrange(page, alone)
            page.wait_for_timeout(300)
            target = PICTURES / f"report-{name}.png"
            save(page.screenshot(), target)
            page.close()
            print(target.relative_to(ROOT), target.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
