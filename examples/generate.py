"""Continue a text with a language model that takes the keys and values of earlier tokens (past_key_values).

    optimum-cli export onnx --model gpt2 --task text-generation-with-past gpt2/
    python examples/generate.py gpt2/ The quick brown fox --tokens 64

The folder is one that optimum, transformers.js or onnxruntime-genai's builder wrote, as it is. The first call compiles
its model into `heterocc.hcb` there (which needs heterocc); later calls need heterocc-runtime alone, and tokenizers. A
bundle may stand in place of the folder, and numbers of tokens in place of the text. Tokens are the most probable ones,
or drawn with --temperature. The prompt is one run; each token after it is another, which reads keys and values where
the last one wrote them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import heterocc.runtime

Feed = dict[str, npt.NDArray[np.generic]]
Choose = Callable[[npt.NDArray[np.float32]], int]

MODELS = ("model.onnx", "decoder_model_merged.onnx", "decoder_model.onnx")
"""Names of models, the first that exists is meant."""


@dataclass(frozen=True)
class Folder:
    """A model, its tokenizer, and the tokens that end a text, as a folder of an exporter has them."""

    model: Path
    tokenizer: Path
    ends: frozenset[int]

    @classmethod
    def read(cls, folder: Path) -> Folder:
        """The contents of a folder. Exits with a message if it has no model."""
        settings = {name: _json(folder / f"{name}.json") for name in ("genai_config", "generation_config", "config")}
        genai = settings["genai_config"].get("model", {})
        places = [folder / sub / name for sub in ("", "onnx") for name in MODELS]
        if "decoder" in genai:
            places.insert(0, folder / genai["decoder"]["filename"])
        model = next((path for path in places if path.exists()), None)
        if model is None:
            sys.exit(f"{folder} has no {', '.join(MODELS)}, and none in a folder onnx/")
        known = (genai, settings["generation_config"], settings["config"])
        found = next((given["eos_token_id"] for given in known if given.get("eos_token_id") is not None), [])
        return cls(model, folder / "tokenizer.json", frozenset([found] if isinstance(found, int) else found))

    def compiled(self) -> Path:
        """The bundle of the model, for one text of any length, compiled if it is not there."""
        bundle = self.model.parent / "heterocc.hcb"
        if not bundle.exists():
            import onnx

            from heterocc.compiler import compile_model

            print(f"compiling {self.model}", file=sys.stderr)
            inputs = onnx.load(self.model, load_external_data=False).graph.input
            ids = next(i for i in inputs if i.name == "input_ids")
            batch = ids.type.tensor_type.shape.dim[0].dim_param
            compile_model(self.model, bundle, dims={batch: 1} if batch else {})
        return bundle


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def generate(
    session: heterocc.runtime.Session, prompt: list[int], count: int, choose: Choose, ends: frozenset[int]
) -> Iterator[int]:
    """At most `count` tokens after the prompt, until one that ends the text."""
    caches = {i.name: i for i in session.inputs if i.name.startswith("past_key_values.")}
    binding = session.bind(state={name: name.replace("past_key_values", "present") for name in caches})
    # No keys and values yet. Of their dynamic dimensions the first is the batch, and the other the length: as little as
    # it may be, which is 0, but for caches of a window the room that it needs.
    empty: Feed = {
        name: np.zeros([least(i, axis) for axis in range(len(i.shape or ()))], i.dtype) for name, i in caches.items()
    }
    others = {i.name: i.dtype for i in session.inputs if i.name not in caches}
    tokens, past = prompt, 0
    for _ in range(count):
        given: Feed = {
            "input_ids": np.array([tokens]),
            "position_ids": np.arange(past, past + len(tokens))[None],
            "attention_mask": np.ones((1, past + len(tokens)), np.int64),
            "use_cache_branch": np.array([past > 0]),
        }
        results = binding.run({name: given[name].astype(dtype) for name, dtype in others.items()} | empty)
        empty = {}
        past += len(tokens)
        tokens = [choose(results["logits"][0, -1].astype(np.float32))]
        if tokens[0] in ends:
            return
        yield tokens[0]


def least(info: heterocc.runtime.TensorInfo, axis: int) -> int:
    """The least size of a dimension, 1 for a dynamic batch."""
    size, sizes = (info.shape or ())[axis], info.sizes[axis] if info.sizes else None
    if isinstance(size, int):
        return size
    return max(int(axis == 0), 0 if sizes is None or sizes.range is None else sizes.range.min)


def most_probable(logits: npt.NDArray[np.float32]) -> int:
    """The token with the largest logit."""
    return int(logits.argmax())


def drawn(temperature: float, top_k: int, top_p: float, seed: int) -> Choose:
    """A function that draws from the `top_k` most probable tokens, of which the first share `top_p` is kept."""
    rng = np.random.default_rng(seed)

    def choose(logits: npt.NDArray[np.float32]) -> int:
        best = np.argsort(-logits)[:top_k]
        weights = np.exp((logits[best] - logits[best[0]]).astype(np.float64) / temperature)
        before = np.cumsum(weights / weights.sum()) - weights / weights.sum()
        weights[before >= top_p] = 0
        return int(rng.choice(best, p=weights / weights.sum()))

    return choose


def in_tokens(prompt: list[str], tokenizer: Path | None) -> tuple[list[int], Callable[[int], str]]:
    """The tokens of a prompt, and a function that returns what each further token adds to the text."""
    if tokenizer is None or not tokenizer.exists():
        return [int(token) for token in prompt], lambda token: f"{token} "
    from tokenizers import Tokenizer
    from tokenizers.decoders import DecodeStream

    words, stream = Tokenizer.from_file(str(tokenizer)), DecodeStream(skip_special_tokens=True)
    # A step returns None as long as the tokens end within a character.
    return words.encode(" ".join(prompt)).ids, lambda token: stream.step(words, token) or ""


def main() -> None:
    """Print the text, or the numbers of tokens, as they come; then how many there were in a second."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", type=Path, help="a folder of an exporter, or a bundle")
    parser.add_argument("prompt", nargs="+", help="a text, or numbers of tokens if there is no tokenizer")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json; by default that of the folder")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the most probable token")
    parser.add_argument("--top-k", type=int, default=50)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bundle, ends, tokenizer = options.model, frozenset[int](), options.tokenizer
    if options.model.is_dir():
        folder = Folder.read(options.model)
        bundle, ends, tokenizer = folder.compiled(), folder.ends, tokenizer or folder.tokenizer
    prompt, text_of = in_tokens(options.prompt, tokenizer)
    choose = most_probable
    if options.temperature > 0:
        choose = drawn(options.temperature, options.top_k, options.top_p, options.seed)
    written = 0
    with heterocc.runtime.load(bundle) as session:
        start = time.perf_counter()
        for token in generate(session, prompt, options.tokens, choose, ends):
            print(text_of(token), end="", flush=True)
            written += 1
        seconds = time.perf_counter() - start
    print(f"\n{written / seconds:.0f} tokens per second")


if __name__ == "__main__":
    main()
