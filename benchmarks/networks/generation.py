"""Language models that take keys and values of earlier tokens: times of tokens and prompts, beside other programs.

Usage: python benchmarks/networks/generation.py [--prompt 32,128] [--past 0,2048] [--tokens 32] [--threads 1,2]
                                                [--seconds 3] [--keep FOLDER] [--compile-only]
                                                [--dim batch_size=1] MODEL.onnx …
A model has the inputs input_ids, past_key_values.…, and perhaps attention_mask and position_ids, and the outputs logits
and present.…; it is compiled for the CPU with a batch of 1. Peers are ONNX Runtime and, where they are installed,
OpenVINO and onnxruntime-genai, which needs the folder of its builder (genai_config.json beside the model); a line says
which are missing. All write the most probable tokens, and none copies keys and values between runs. In models without
weights of few bits, whose products are rounded alike by ONNX Runtime alone, the tokens must be those of ONNX Runtime.
They take turns, with pauses between; a generation of 4 tokens before each is not counted. `--past` are numbers of
tokens before the prompt, computed beforehand. `--keep` is a folder for bundles, which are not compiled again if they
are there; `--compile-only` ends when they are.

Prints the milliseconds of a token after the prompt (the mean of the best times of each), those of the run of the
prompt, and the best peer's time over ours: above 1 is faster. `same` is the number of first tokens that equal ONNX
Runtime's. Writes benchmarks/results/generation.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.peers.generation import (  # noqa: E402
    GenAI,
    Generation,
    OnnxRuntime,
    OpenVino,
    Ours,
    Runner,
    caches_of,
)
from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import load  # noqa: E402
from heterocc.runtime.cli.bench import wait_until_idle  # noqa: E402

OURS, REFERENCE = "heterocc", "onnxruntime"
WARM_UP = 4
"""Tokens that are not counted before each generation."""


def missing(model: Path) -> dict[str, str]:
    """The peers that cannot run a model here, with the reasons."""
    found = {}
    for name, package in (("openvino", "openvino"), ("genai", "onnxruntime_genai")):
        if importlib.util.find_spec(package) is None:
            found[name] = f"{package} is not installed"
    if not (model.parent / "genai_config.json").is_file():
        found.setdefault("genai", f"{model.parent} has no genai_config.json")
    return found


def peers(model: Path, threads: int, caches: Mapping[str, Any], longest: int) -> dict[str, Runner]:
    """The peers that can run a model."""
    made: dict[str, Callable[[], Runner]] = {
        REFERENCE: lambda: OnnxRuntime(model, threads, caches),
        "openvino": lambda: OpenVino(model, threads, caches),
        "genai": lambda: GenAI(model, threads, longest),
    }
    left_out = missing(model)
    found = {}
    for name in (name for name in made if name not in left_out):
        try:
            found[name] = made[name]()
        except Exception as error:
            if name == REFERENCE:
                raise
            left_out[name] = str(error).strip().splitlines()[-1]
    for name, reason in left_out.items():
        print(f"without {name}: {reason}", file=sys.stderr)
    return found


def measure(
    model: Path, bundle: Path, past: int, prompt: int, count: int, threads: int, seconds: float
) -> dict[str, Any]:
    """The best times of all runners. Raises SystemExit for other tokens than ONNX Runtime's."""
    random = np.random.default_rng(0)
    before, first = (random.integers(3, 90, size).tolist() for size in (past, prompt))
    with load(bundle, threads=threads) as session:
        runners: dict[str, Runner] = {OURS: Ours(session)}
        runners |= peers(model, threads, caches_of(session), past + prompt + count + 1)
        for runner in runners.values():
            runner.begin(before)
        found: dict[str, list[Generation]] = {name: [] for name in runners}
        end = time.perf_counter() + seconds * len(runners)
        while not found[OURS] or time.perf_counter() < end:
            for name, runner in runners.items():
                wait_until_idle()
                runner.generate(first, WARM_UP)
                found[name].append(runner.generate(first, count))
    reference = found[REFERENCE][0].tokens
    row: dict[str, Any] = {"model": name_of(model), "past": past, "prompt": prompt, "threads": threads}
    row["different"] = len(set(reference))
    for name, runs in found.items():
        # Each token's best time: runs of the machine's neighbours hit some tokens of every generation.
        best = np.min([g.others for g in runs], axis=0)
        same = min(_alike(g.tokens, reference) for g in runs)
        row[name] = {"token_ms": best.mean() * 1e3, "prompt_ms": min(g.prompt for g in runs) * 1e3, "same": same}
    if row[OURS]["same"] < count and not has_few_bits(model):
        raise SystemExit(f"{model}: the tokens differ from ONNX Runtime's after the first {row[OURS]['same']}")
    return row


def _alike(tokens: tuple[int, ...], others: tuple[int, ...]) -> int:
    """The number of first tokens that are equal."""
    return next((n for n, (a, b) in enumerate(zip(tokens, others, strict=True)) if a != b), len(others))


def has_few_bits(model: Path) -> bool:
    """Whether a model has products whose runners may round the other factor differently."""
    graph = onnx.load(model, load_external_data=False).graph
    return any(node.op_type in ("MatMulNBits", "DequantizeLinear") for node in graph.node)


def name_of(model: Path) -> str:
    """The file's name, or that of its folder where exporters name each file alike."""
    return model.parent.name if model.stem == "model" else model.stem


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    text = f"{row['model']:<24}{row['past']:>6}{row['prompt']:>7}{row['threads']:>3}"
    names = [name for name in (OURS, REFERENCE, "openvino", "genai") if name in row]
    for figure in ("token_ms", "prompt_ms"):
        best = min(row[name][figure] for name in names[1:])
        text += "  |" + "".join(f" {name} {row[name][figure]:.2f}" for name in names)
        text += f" ratio {best / row[OURS][figure]:.2f}"
    return text + f"  | same {row[OURS]['same']}, {row['different']} different"


def cases(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows as scripts/performance.py reads them: one for tokens, one for the prompt."""
    found = []
    for row in rows:
        where = f"{row['model']}, past {row['past']}"
        texts = (("token_ms", f"{where}, a token"), ("prompt_ms", f"{where}, a prompt of {row['prompt']}"))
        for figure, name in texts:
            times = {k: {"min": v[figure]} for k, v in row.items() if isinstance(v, dict)}
            found.append({"name": name, "threads": row["threads"], "ms": times})
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--prompt", default="32,128")
    parser.add_argument("--past", default="0")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=3.0, help="per case and runner")
    parser.add_argument("--dim", default="batch_size=1", help="a dimension that is fixed; empty for none")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--compile-only", action="store_true")
    given = parser.parse_args()
    dims = {name: int(size) for name, _, size in [given.dim.partition("=")] if name}
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for model in given.models:
            bundle = folder / f"{name_of(model)}-{given.dim or 'any'}.hcb"
            if not bundle.exists():
                compile_model(model, bundle, devices="CPU", dims=dims)
            lists = [[int(n) for n in text.split(",")] for text in (given.past, given.prompt, given.threads)]
            for past, prompt, threads in () if given.compile_only else itertools.product(*lists):
                rows.append(measure(model, bundle, past, prompt, given.tokens, threads, given.seconds))
                print(line(rows[-1]), flush=True)
    if rows:
        out = ROOT / "benchmarks" / "results"
        out.mkdir(exist_ok=True)
        (out / "generation.json").write_text(json.dumps({"rows": rows, "cases": cases(rows)}, indent=2) + "\n")


if __name__ == "__main__":
    main()
