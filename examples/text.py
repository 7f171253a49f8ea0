"""Tell what kind of text is in a file (Python, Markdown, JSON, …) with Magika's model, by its bytes.

    pip download --no-deps magika==1.0.3 && unzip magika-*.whl
    heterocc compile magika/models/standard_v3_3/model.onnx -o magika.hcb
    python examples/text.py magika.hcb README.md Makefile --labels magika/models/standard_v3_3/config.min.json

It needs heterocc-runtime. The model's batch is dynamic, so all files are one request.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

import heterocc.runtime

READ = 4096
"""Bytes that are read at the beginning and at the end of a file."""
KEPT = 1024
"""Bytes of each of the two that the model takes."""
PADDING = 256
"""What stands for a byte after the beginning, and before the end, of a short file."""


def tokens(path: Path) -> npt.NDArray[np.int32]:
    """The beginning and the end of a file without white space around it, as int32[2048]."""
    data = path.read_bytes()
    first, last = data[:READ].lstrip()[:KEPT], data[-READ:].rstrip()[-KEPT:]
    found = np.full(2 * KEPT, PADDING, np.int32)
    found[: len(first)] = list(first)
    found[2 * KEPT - len(last) :] = list(last)
    return found


def classify(session: heterocc.runtime.Session, files: list[Path]) -> npt.NDArray[np.float32]:
    """The probabilities of all kinds for each file."""
    scores: npt.NDArray[np.float32] = session.run({"bytes": np.stack([tokens(path) for path in files])})["target_label"]
    return scores


def main() -> None:
    """Print the most probable kind of each file."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--labels", type=Path, help="the model's config.min.json, which names the kinds")
    options = parser.parse_args()
    labels = json.loads(options.labels.read_text())["target_labels_space"] if options.labels else []
    with heterocc.runtime.load(options.bundle) as session:
        for path, row in zip(options.files, classify(session, options.files), strict=True):
            best = int(row.argmax())
            print(f"{row[best]:7.2%}  {labels[best] if labels else f'kind {best}':14} {path}")


if __name__ == "__main__":
    main()
