"""Tokens per second of language models that take the keys and values of earlier tokens, beside ONNX Runtime.

Usage: python benchmarks/generation.py [--prompt 16,128] [--past 0] [--tokens 64] [--threads 1,2] [--seconds 3]
                                       [--keep FOLDER] [--compile-only] [--dim batch=1] MODEL.onnx …
A model has the inputs input_ids, past_key_values.…, and perhaps attention_mask and position_ids, and the outputs logits
and present.…; it is compiled for the CPU with a batch of 1. Ours runs by `session.bind(state=…)`, ONNX Runtime by
IO binding, with its last outputs as inputs: neither copies keys and values between runs. Both write the most probable
tokens, which must be equal. They take turns, with pauses between; a generation of 8 tokens before each is not counted.
`--past` are numbers of tokens before the prompt, whose keys and values are random and an input of the first run.
`--keep` is a folder for bundles, which are not compiled again if they are there; `--compile-only` ends when they are.

Prints tokens per second after the prompt, and milliseconds of the run of the prompt: the best time of each run in all
turns. Ratios above 1 are faster than ONNX Runtime. Writes benchmarks/results/generation.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import Session, load  # noqa: E402
from heterocc.runtime.cli.bench import wait_until_idle  # noqa: E402
from heterocc.runtime.execute.ort_session import open_session, session_options  # noqa: E402

Feed = dict[str, Any]
Step = Callable[[Feed, bool], Any]
"""Runs a feed without state and returns the logits; the flag is for the first run, whose state is empty."""


@dataclass(frozen=True)
class Generation:
    """Tokens, seconds of the run of the prompt, and of each run after it."""

    tokens: tuple[int, ...]
    prompt: float
    others: tuple[float, ...]


def present(past: str) -> str:
    """The output that is the input `past` of the next run."""
    return past.replace("past_key_values", "present")


def our_step(session: Session, past: int) -> Step:
    """Runs by a binding whose state goes from run to run, and begins with `past` tokens."""
    caches = {i.name: i for i in session.inputs if i.name.startswith("past_key_values.")}
    binding = session.bind(state={name: present(name) for name in caches})
    begin = {name: _begin(i.shape or (), i.dtype, past) for name, i in caches.items()}
    return lambda feed, first: binding.run({**feed, **begin} if first else feed)["logits"]


def peer_step(session: onnxruntime.InferenceSession, past: int) -> Step:
    """Runs by IO binding: outputs stay in ONNX Runtime's memory and are inputs of the next run."""
    caches = {i.name: i for i in session.get_inputs() if i.name.startswith("past_key_values.")}
    outputs = [o.name for o in session.get_outputs()]
    state: dict[str, Any] = {}
    arrays = {name: _begin(i.shape, "float32", past) for name, i in caches.items()}
    begin = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}

    def step(feed: Feed, first: bool) -> Any:
        if first:
            state.update(begin)
        binding = session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        for name, value in state.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        found = dict(zip(outputs, binding.get_outputs(), strict=True))
        state.update({name: found[present(name)] for name in caches})
        return found["logits"].numpy()

    return step


def _begin(shape: Any, dtype: str, past: int) -> Any:
    """Keys or values of the first `past` tokens, random; other dynamic dimensions are 1."""
    sizes = [past if a == 2 else d if isinstance(d, int) else 1 for a, d in enumerate(shape)]
    return np.random.default_rng(1).standard_normal(sizes).astype(dtype)


def generate(step: Step, names: set[str], past: int, prompt: list[int], count: int) -> Generation:
    """The most probable next token after `past` tokens and a prompt, `count` times."""
    tokens = prompt
    written, seconds = [], []
    for number in range(count):
        start = time.perf_counter()
        given: Feed = {
            "input_ids": np.array([tokens]),
            "position_ids": np.arange(past, past + len(tokens))[None],
            "attention_mask": np.ones((1, past + len(tokens)), np.int64),
        }
        logits = step({name: array for name, array in given.items() if name in names}, number == 0)
        past += len(tokens)
        tokens = [int(logits[0, -1].argmax())]
        seconds.append(time.perf_counter() - start)
        written += tokens
    return Generation(tuple(written), seconds[0], tuple(seconds[1:]))


def measure(
    model: Path, bundle: Path, past: int, prompt: int, count: int, threads: int, seconds: float
) -> dict[str, Any]:
    """The best times of both."""
    reference = open_session(str(model), session_options(threads=threads))
    names = {i.name for i in reference.get_inputs()}
    first = np.random.default_rng(0).integers(3, 90, prompt).tolist()
    with load(bundle, threads=threads) as session:
        steps = {"heterocc": our_step(session, past), "onnxruntime": peer_step(reference, past)}
        found: dict[str, list[Generation]] = {name: [] for name in steps}
        end = time.perf_counter() + seconds * len(steps)
        while not found["heterocc"] or time.perf_counter() < end:
            for name, step in steps.items():
                wait_until_idle()
                generate(step, names, past, first, 8)
                found[name].append(generate(step, names, past, first, count))
    ours, theirs = ({g.tokens for g in found[name]} for name in steps)
    if ours != theirs or len(ours) != 1:
        raise SystemExit(f"the tokens differ: {ours}, ONNX Runtime {theirs}")
    row: dict[str, Any] = {"model": model.stem, "past": past, "prompt": prompt, "threads": threads}
    row["different"] = len(set(*ours))
    for name, runs in found.items():
        # Each token's best time: runs of the machine's neighbours hit some tokens of every generation.
        best = np.min([g.others for g in runs], axis=0)
        row[name] = {"tokens_per_second": len(best) / best.sum(), "prompt_ms": min(g.prompt for g in runs) * 1e3}
    return row


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    ours, peer = row["heterocc"], row["onnxruntime"]
    text = f"{row['model']:<24}{row['past']:>6}{row['prompt']:>7}{row['threads']:>3}"
    text += f"{ours['tokens_per_second']:>10.0f}{peer['tokens_per_second']:>8.0f}"
    text += f"{ours['tokens_per_second'] / peer['tokens_per_second']:>8.2f}"
    text += f"{ours['prompt_ms']:>12.2f}{peer['prompt_ms']:>8.2f}{peer['prompt_ms'] / ours['prompt_ms']:>8.2f}"
    return text + f"{row['different']:>11}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--prompt", default="16,128")
    parser.add_argument("--past", default="0")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=3.0, help="per case and runner")
    parser.add_argument("--dim", default="batch=1", help="a dimension that is fixed; empty for none")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--compile-only", action="store_true")
    given = parser.parse_args()
    dims = {name: int(size) for name, _, size in [given.dim.partition("=")] if name}
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not given.compile_only:
            print(f"{'model':<24}{'past':>6}{'prompt':>7}{'th':>3}{'tokens/s':>10}{'ORT':>8}{'ratio':>8}"
                  f"{'prompt ms':>12}{'ORT':>8}{'ratio':>8}{'different':>11}")  # fmt: skip
        for model in given.models:
            bundle = folder / f"{model.stem}-{given.dim or 'any'}.hcb"
            if not bundle.exists():
                compile_model(model, bundle, devices="CPU", dims=dims)
            lists = [[int(n) for n in text.split(",")] for text in (given.past, given.prompt, given.threads)]
            for past, prompt, threads in () if given.compile_only else itertools.product(*lists):
                rows.append(measure(model, bundle, past, prompt, given.tokens, threads, given.seconds))
                print(line(rows[-1]), flush=True)
    if rows:
        out = ROOT / "benchmarks" / "results"
        out.mkdir(exist_ok=True)
        (out / "generation.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
