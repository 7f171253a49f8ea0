"""Continue a text with a language model that takes the keys and values of earlier tokens (past_key_values).

    optimum-cli export onnx --model gpt2 --task text-generation-with-past gpt2/
    heterocc compile gpt2/model.onnx --devices CPU --dim batch_size=1 -o gpt2.hcb
    python examples/generate.py gpt2.hcb 464 3280 318 --tokens 64

It needs heterocc-runtime. Tokens are numbers here: a tokenizer is a library of its own. The prompt is one run; each
token after it is another, which reads the keys and values where the last one wrote them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import heterocc.runtime

Feed = dict[str, npt.NDArray[np.generic]]


def generate(session: heterocc.runtime.Session, prompt: list[int], count: int) -> Iterator[int]:
    """The most probable next token, `count` times."""
    caches = {i.name: i for i in session.inputs if i.name.startswith("past_key_values.")}
    binding = session.bind(state={name: name.replace("past_key_values", "present") for name in caches})
    # No keys and values yet: the dimension of the sequence is 0, others that are dynamic are 1.
    empty: Feed = {
        name: np.zeros(
            [0 if axis == 2 else d if isinstance(d, int) else 1 for axis, d in enumerate(i.shape or ())], i.dtype
        )
        for name, i in caches.items()
    }
    others = {i.name for i in session.inputs} - caches.keys()
    tokens, past = prompt, 0
    for _ in range(count):
        given: Feed = {
            "input_ids": np.array([tokens]),
            "position_ids": np.arange(past, past + len(tokens))[None],
            "attention_mask": np.ones((1, past + len(tokens)), np.int64),
        }
        results = binding.run({name: array for name, array in given.items() if name in others} | empty)
        empty = {}
        past += len(tokens)
        tokens = [int(results["logits"][0, -1].argmax())]
        yield tokens[0]


def main() -> None:
    """Print the tokens, and how many there were in a second."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("prompt", type=int, nargs="+", help="numbers of tokens")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    with heterocc.runtime.load(options.bundle) as session:
        start = time.perf_counter()
        found = list(generate(session, options.prompt, options.tokens))
        seconds = time.perf_counter() - start
    print(*found)
    print(f"{len(found) / seconds:.0f} tokens per second")


if __name__ == "__main__":
    main()
