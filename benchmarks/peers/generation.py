"""Runners of language models for `networks/generation.py`: heterocc, ONNX Runtime, onnxruntime-genai and OpenVINO.

Each holds the keys and values of the tokens that it began with, and generates from there as often as it is asked.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from heterocc.runtime import Session
from heterocc.runtime.execute.ort_session import open_session, session_options

Array = np.ndarray[Any, Any]
PIECE = 256
"""The tokens of a run of those to begin with: their logits are large."""


@dataclass(frozen=True)
class Generation:
    """Tokens, seconds of the run of the prompt, and of each run after it."""

    tokens: tuple[int, ...]
    prompt: float
    others: tuple[float, ...]


class Runner(ABC):
    """A program that writes the most probable tokens."""

    @abstractmethod
    def begin(self, tokens: Sequence[int]) -> None:
        """Compute the keys and values of the tokens before all prompts."""

    @abstractmethod
    def generate(self, prompt: Sequence[int], count: int) -> Generation:
        """The `count` most probable tokens after those of `begin` and a prompt."""


class StepRunner(Runner):
    """A runner whose runs return logits; `names` are the model's inputs that are not keys and values."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._past = 0

    @abstractmethod
    def _restore(self) -> None:
        """Let the next run follow the tokens of `begin`."""

    @abstractmethod
    def _keep(self) -> None:
        """Keep the keys and values of the last run for `_restore`."""

    @abstractmethod
    def _run(self, feed: dict[str, Array]) -> Array:
        """The logits."""

    def begin(self, tokens: Sequence[int]) -> None:
        """Compute the keys and values of the tokens before all prompts."""
        self._past = 0
        for start in range(0, len(tokens), PIECE):
            piece = tokens[start : start + PIECE]
            self._restore()
            self._run(self._feed(self._past, piece))
            self._keep()
            self._past += len(piece)

    def generate(self, prompt: Sequence[int], count: int) -> Generation:
        """The `count` most probable tokens after those of `begin` and a prompt."""
        tokens, past = list(prompt), self._past
        written, seconds = [], []
        self._restore()
        for _ in range(count):
            start = time.perf_counter()
            logits = self._run(self._feed(past, tokens))
            past += len(tokens)
            tokens = [int(logits[0, -1].argmax())]
            seconds.append(time.perf_counter() - start)
            written += tokens
        return Generation(tuple(written), seconds[0], tuple(seconds[1:]))

    def _feed(self, past: int, tokens: Sequence[int]) -> dict[str, Array]:
        total = past + len(tokens)
        given = {
            "input_ids": np.array([tokens]),
            "position_ids": np.arange(past, total)[None],
            "attention_mask": np.ones((1, total), np.int64),
        }
        return {name: array for name, array in given.items() if name in self._names}


def present(past: str) -> str:
    """The output that is the input `past` of the next run."""
    return past.replace("past_key_values", "present")


def _is_past(name: str) -> bool:
    return name.startswith("past_key_values.")


def caches_of(session: Session) -> dict[str, Array]:
    """Keys and values of no tokens by the names of their inputs; other dynamic dimensions are 1."""
    found = {}
    for given in session.inputs:
        if _is_past(given.name):
            sizes = [0 if axis == 2 else d if isinstance(d, int) else 1 for axis, d in enumerate(given.shape or ())]
            found[given.name] = np.zeros(sizes, given.dtype)
    return found


class Ours(StepRunner):
    """heterocc: runs by a binding whose state goes from run to run."""

    def __init__(self, session: Session) -> None:
        super().__init__({i.name for i in session.inputs})
        self._start: Mapping[str, Array] = caches_of(session)
        self._binding = session.bind(state={name: present(name) for name in self._start})
        self._given: Mapping[str, Array] = {}

    def _restore(self) -> None:
        self._given = self._start

    def _keep(self) -> None:
        self._start = {name: np.array(array) for name, array in self._binding.state.items()}

    def _run(self, feed: dict[str, Array]) -> Array:
        found: Array = self._binding.run({**feed, **self._given})["logits"]
        self._given = {}
        return found


class OnnxRuntime(StepRunner):
    """ONNX Runtime: by IO binding, outputs are inputs of the next run."""

    def __init__(self, model: Path, threads: int, caches: Mapping[str, Array]) -> None:
        self._session = open_session(str(model), session_options(threads=threads))
        super().__init__({i.name for i in self._session.get_inputs()})
        self._outputs = [o.name for o in self._session.get_outputs()]
        self._start = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in caches.items()}
        self._state = self._start

    def _restore(self) -> None:
        self._state = self._start

    def _keep(self) -> None:
        self._start = self._state

    def _run(self, feed: dict[str, Array]) -> Array:
        binding = self._session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        for name, value in self._state.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding)
        found = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        self._state = {name: found[present(name)] for name in self._start}
        logits: Array = found["logits"].numpy()
        return logits


class OpenVino(StepRunner):
    """OpenVINO: keys and values are its states, as optimum-intel makes them."""

    def __init__(self, model: Path, threads: int, caches: Mapping[str, Array]) -> None:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it would use a core
        import openvino
        from openvino._offline_transformations import apply_make_stateful_transformation

        core = openvino.Core()
        found = core.read_model(model)
        shapes = {}
        for given in found.inputs:
            shape = given.partial_shape
            for axis, size in enumerate(caches[given.any_name].shape if given.any_name in caches else (1,)):
                if axis != 2:
                    shape[axis] = size
            shapes[given.any_name] = shape
        found.reshape(shapes)
        apply_make_stateful_transformation(found, {name: present(name) for name in caches})
        super().__init__({i.any_name for i in found.inputs})
        properties = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        self._request = core.compile_model(found, "CPU", properties).create_infer_request()
        self._start: dict[str, Array] = {}

    def _restore(self) -> None:
        import openvino

        self._request.reset_state()
        for state in self._request.query_state():
            if state.name in self._start:
                state.state = openvino.Tensor(self._start[state.name])

    def _keep(self) -> None:
        self._start = {state.name: np.array(state.state.data) for state in self._request.query_state()}

    def _run(self, feed: dict[str, Array]) -> Array:
        found: Array = self._request.infer(feed)["logits"]
        return found


class GenAI(Runner):
    """onnxruntime-genai, of the folder that its builder wrote: its own loop, with one cache of a fixed size."""

    def __init__(self, model: Path, threads: int, longest: int) -> None:
        import onnxruntime_genai

        config = onnxruntime_genai.Config(str(model.parent))
        options = '{"model": {"decoder": {"session_options": {"intra_op_num_threads": %d}}}}'
        config.overlay(options % threads)
        self._model = onnxruntime_genai.Model(config)
        params = onnxruntime_genai.GeneratorParams(self._model)
        params.set_search_options(max_length=longest, min_length=longest)
        self._generator = onnxruntime_genai.Generator(self._model, params)
        self._past = 0

    def begin(self, tokens: Sequence[int]) -> None:
        """Compute the keys and values of the tokens before all prompts."""
        self._past = len(tokens)
        if tokens:
            self._generator.append_tokens(np.array([tokens], np.int32))

    def generate(self, prompt: Sequence[int], count: int) -> Generation:
        """The `count` most probable tokens after those of `begin` and a prompt."""
        generator = self._generator
        generator.rewind_to(self._past)
        seconds, written = [], []
        start = time.perf_counter()
        generator.append_tokens(np.array([prompt], np.int32))
        for _ in range(count):
            generator.generate_next_token()
            written.append(int(generator.get_next_tokens()[0]))
            seconds.append(time.perf_counter() - start)
            start = time.perf_counter()
        return Generation(tuple(written), seconds[0], tuple(seconds[1:]))
