"""The peers of `bench --against`: other programs that run the original model beside a bundle."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heterocc.artifacts.errors import FileMissingError, NotOnnxError, UsageError
from heterocc.artifacts.files.filetype import is_file
from heterocc.artifacts.foreign import pass_foreign
from heterocc.runtime.cli.bench import Peer, Runner, onnxruntime_runner


def openvino_runner(model: Path, feed: Mapping[str, Any], threads: int | None) -> Callable[[], object]:
    """A function that runs one OpenVINO infer request in float32, by default on all cores of the process.

    Raises FileMissingError (HC101) and NotOnnxError (HC102).
    """
    if not is_file(model):
        raise FileMissingError("the model does not exist", where=str(model))
    # OpenVINO reports its use in a process of its own, which imports the main module first: a second or two in which
    # the runners beside it have one core less. Without the package that does so, nothing is reported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    import openvino

    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads or len(os.sched_getaffinity(0)),
    }
    try:
        request = openvino.Core().compile_model(str(model), "CPU", config).create_infer_request()
        inputs = dict(feed)
        request.infer(inputs)
    except Exception as error:
        pass_foreign(error)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise NotOnnxError(f"OpenVINO cannot run it: {lines[-1]}", where=str(model)) from error
    return lambda: request.infer(inputs)


PEERS: Mapping[str, tuple[str, Runner]] = {
    "onnxruntime": ("ONNX Runtime", onnxruntime_runner),
    "openvino": ("OpenVINO", openvino_runner),
}
"""The peers by their names for `--against`, with their names in reports."""


def peers_of(text: str | None, model: Path | None) -> tuple[Peer, ...]:
    """The peers that the value of `--against` names, for the model that is timed if it is known.

    The value is a list of peers, with the path of the model if it is not known; the path alone means ONNX Runtime.
    Peers that are not installed are refused here, before anything is compiled.
    Raises UsageError (HC120).
    """
    if text is None:
        return ()
    whole = is_file(Path(text))
    items = [text] if whole else [item.strip() for item in text.split(",")]
    names = [item for item in items if item in PEERS and not whole]
    others = [item for item in items if item not in names]
    known = f"the peers are {', '.join(PEERS)}"
    for other in others:
        if not Path(other).suffix and not is_file(Path(other)):
            raise UsageError(f"unknown peer '{other}'", where="--against", hint=known)
    if len(others) > 1:
        raise UsageError("more than one model is given", where="--against", hint=f"name one model; {known}")
    if "openvino" in names and sys.modules.get("openvino") is None and find_spec("openvino") is None:
        raise UsageError("OpenVINO is not installed", where="--against openvino", hint="pip install openvino")
    if others:
        model = Path(others[0])
    if model is None:
        raise UsageError(
            f"{PEERS[names[0]][0]} runs the model, and a bundle does not have it",
            where="--against",
            hint=f"bench the model itself, or name it too: --against model.onnx,{names[0]}",
        )
    return tuple(Peer(PEERS[name][0], model, PEERS[name][1]) for name in dict.fromkeys(names or ("onnxruntime",)))
