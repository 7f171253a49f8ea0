"""Recurrent layers on the CPU: dynamic length and batch, fixed sizes, and ONNX Runtime.

Usage: python benchmarks/operators/recurrent.py [--kinds LSTM,GRU] [--hidden 64,256] [--batch 1,32] [--length 1,128]
                                      [--threads 1,2] [--fixed] [--seconds 0.3] [--also bidirectional,lengths,decay]
Each layer has as many inputs as states. One bundle of dynamic length and batch serves all sizes of a row's kind and
hidden size; `--fixed` compiles another one for each size. The runners take turns in blocks, `--seconds` for each, with
pauses between. With `--also decay` a line below each row has the times for zeros after one step of noise, which make
the states of such layers denormal.

Prints minima in milliseconds, ONNX Runtime's time over that of the dynamic bundle, this over that of the fixed one,
and billions of multiply-adds per second; writes benchmarks/results/recurrent.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import load  # noqa: E402

GATES = {"LSTM": 4, "GRU": 3, "GRU-linear": 3, "RNN": 1, "LSTM-int8": 4, "LSTM-uint8": 4}
"""Gates: `GRU-linear` has `linear_before_reset`, as PyTorch's has. `LSTM-int8` is DynamicQuantizeLSTM, and `LSTM-uint8`
the same with unsigned weights, and scales and zero points for each column."""

ROUNDS = 5

Size = int | str


def layer(kind: str, hidden: int, length: Size, batch: Size, also: Sequence[str] = ()) -> onnx.ModelProto:
    """A layer with as many inputs as states, its outputs at every step, and its last state."""
    rng, gates = np.random.default_rng(0), GATES[kind] * hidden
    both = 2 if "bidirectional" in also else 1
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional" if both == 2 else "forward"}
    if kind == "GRU-linear":
        attributes["linear_before_reset"] = 1
    weights = {n: rng.uniform(-1, 1, (both, gates, hidden)) / hidden**0.5 for n in ("w", "r")}
    bias = rng.uniform(-1, 1, (both, 2 * gates)) / hidden**0.5
    if "decay" in also:  # states that shrink with zeros as inputs
        bias, weights["r"] = bias * 0, weights["r"] / 4
    given = ["x", "w", "r", "b", "ends" if "lengths" in also else ""]
    constants = {"b": bias.astype(np.float32)}
    operator, domain = kind.split("-")[0], ""
    if kind.endswith("int8"):
        operator, domain = "DynamicQuantizeLSTM", "com.microsoft"
        per_column = kind == "LSTM-uint8"
        for name, value in weights.items():
            most = np.abs(value).max(axis=2 if per_column else (1, 2))  # of a column [direction, gate, term], or of all
            scale, zero = most / 127, 128 if per_column else 0
            whole = np.round(value / scale.reshape(*scale.shape, *[1] * (3 - scale.ndim))) + zero
            dtype = np.uint8 if per_column else np.int8
            constants[name] = np.clip(whole, 0 if per_column else -127, 255).astype(dtype).transpose(0, 2, 1)
            constants[f"{name}_scale"] = scale.astype(np.float32)
            constants[f"{name}_zero"] = np.full(scale.shape, zero, dtype)
        given += ["", "", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    else:
        constants |= {name: value.astype(np.float32) for name, value in weights.items()}
    node = helper.make_node(operator, given, ["y", "last"], domain=domain, **attributes)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [length, batch, hidden])]
    if "lengths" in also:
        inputs.append(helper.make_tensor_value_info("ends", TensorProto.INT32, [batch]))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "last")]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([node], "layer", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return made


def feed_of(
    hidden: int, length: int, batch: int, also: Sequence[str], noise: int | None = None
) -> dict[str, np.ndarray]:
    """Seeded inputs: all of them noise, or only those of the first steps, before zeros."""
    rng = np.random.default_rng(1)
    feed = {"x": rng.standard_normal((length, batch, hidden)).astype(np.float32)}
    feed["x"][noise:] *= 1 if noise is None else 0
    if "lengths" in also:
        feed["ends"] = rng.integers(1, length + 1, batch).astype(np.int32)
        feed["ends"][0] = length
    return feed


def measured(runners: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The least time of each runner, in milliseconds."""
    best = dict.fromkeys(runners, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runners.items():
            time.sleep(0.01)  # a thread that still waits for work slows the next runner down
            end = time.perf_counter() + seconds / ROUNDS
            while True:
                start = time.perf_counter()
                run()
                now = time.perf_counter()
                best[name] = min(best[name], (now - start) * 1e3)
                if now > end:
                    break
    return best


class Bundles:
    """Compiled layers, in a folder."""

    def __init__(self, folder: Path, also: Sequence[str]) -> None:
        self._folder, self._also = folder, also

    def of(self, kind: str, hidden: int, length: Size, batch: Size) -> Path:
        """The bundle of a layer, compiled when it is first asked for."""
        path = self._folder / f"{kind}-{hidden}-{length}-{batch}.hcb"
        if not path.exists():
            compile_model(layer(kind, hidden, length, batch, self._also), path, devices="CPU")
        return path


def peer_of(model: onnx.ModelProto, threads: int) -> onnxruntime.InferenceSession:
    """ONNX Runtime, whose threads do not wait for work between runs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def rows(given: argparse.Namespace, bundles: Bundles) -> Iterator[dict[str, Any]]:
    """Times of each size."""
    also = given.also.split(",") if given.also else ()
    sizes = [list(map(int, text.split(","))) for text in (given.length, given.batch)]
    for kind, hidden, threads in product(
        given.kinds.split(","), map(int, given.hidden.split(",")), map(int, given.threads.split(","))
    ):
        with ExitStack() as stack:
            ours = stack.enter_context(load(bundles.of(kind, hidden, "length", "batch"), threads=threads))
            peer = peer_of(layer(kind, hidden, "length", "batch", also), threads)
            for length, batch in product(*sizes):
                if length * batch * hidden * hidden * GATES[kind] > given.most * 1e9:
                    continue
                feed = feed_of(hidden, length, batch, also)
                runners: dict[str, Callable[[], object]] = {"dynamic": partial(ours.run, feed)}
                if given.fixed:
                    fixed = stack.enter_context(load(bundles.of(kind, hidden, length, batch), threads=threads))
                    runners["fixed"] = partial(fixed.run, feed)
                if "decay" in also:
                    silence = feed_of(hidden, length, batch, also, noise=1)
                    runners["silence"] = partial(ours.run, silence)
                    runners["silence, onnxruntime"] = partial(peer.run, None, silence)
                runners["onnxruntime"] = partial(peer.run, None, feed)
                tolerance = {"rtol": 0, "atol": 5e-2 if kind.endswith("int8") else 1e-4}
                for found, wanted in zip(ours.run(None, feed), peer.run(None, feed), strict=True):
                    np.testing.assert_allclose(found, wanted, **tolerance)
                ms = measured(runners, given.seconds)
                yield {"kind": kind, "hidden": hidden, "length": length, "batch": batch, "threads": threads, "ms": ms}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(GATES))
    parser.add_argument("--hidden", default="64,256,512,1024")
    parser.add_argument("--batch", default="1,4,32")
    parser.add_argument("--length", default="1,16,128,1024")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--also", default="", help="bidirectional, lengths, decay")
    parser.add_argument("--most", type=float, default=2.0, help="billions of multiply-adds of the largest layer")
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    print(f"{'kind':<12}{'hidden':>7}{'length':>7}{'batch':>6}{'th':>3}{'dynamic':>10}{'fixed':>10}{'ORT':>10}"
          f"{'ORT/dyn':>9}{'dyn/fixed':>10}{'GMAC/s':>8}", flush=True)  # fmt: skip
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for row in rows(given, Bundles(folder, given.also.split(",") if given.also else ())):
            found.append(row)
            ms = row["ms"]
            dynamic, fixed, peer = ms["dynamic"], ms.get("fixed", float("nan")), ms["onnxruntime"]
            rate = GATES[row["kind"]] * row["hidden"] ** 2 * 2 * row["length"] * row["batch"] / dynamic / 1e6
            print(
                f"{row['kind']:<12}{row['hidden']:>7}{row['length']:>7}{row['batch']:>6}{row['threads']:>3}"
                f"{dynamic:>10.4f}{fixed:>10.4f}{peer:>10.4f}{peer / dynamic:>9.2f}"
                f"{dynamic / fixed:>10.2f}{rate:>8.1f}",
                flush=True,
            )
            if "silence" in ms:
                silent, theirs = ms["silence"], ms["silence, onnxruntime"]
                print(f"{'  silence':<29}{silent:>10.4f}{'':>10}{theirs:>10.4f}{theirs / silent:>9.2f}   "
                      f"{silent / dynamic:.2f} of the time for noise", flush=True)  # fmt: skip
    ratios = np.array([row["ms"]["onnxruntime"] / row["ms"]["dynamic"] for row in found])
    print(f"geometric mean {np.exp(np.log(ratios).mean()):.2f}, least {ratios.min():.2f}, "
          f"{(ratios < 1).sum()} of {len(ratios)} under 1.0")  # fmt: skip
    out = ROOT / "benchmarks" / "results"
    out.mkdir(exist_ok=True)
    (out / "recurrent.json").write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
