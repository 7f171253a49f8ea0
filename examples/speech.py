"""Find speech in a recording with Silero's model, which keeps a state from one piece of sound to the next.

    pip download --no-deps silero-vad==6.2.3 && unzip silero_vad-*.whl
    heterocc compile silero_vad/data/silero_vad_op18_ifless.onnx --shape input=1,576 --shape state=2,1,128 -o vad.hcb
    python examples/speech.py vad.hcb recording.wav

It needs heterocc-runtime. The recording is a WAV file of 16-bit samples at 16 kHz; several channels are averaged.
"""

from __future__ import annotations

import argparse
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import heterocc.runtime

RATE = 16_000
STEP = 512
"""New samples of a request."""
CONTEXT = 64
"""Samples of the request before, which the model reads again."""

Samples = npt.NDArray[np.float32]


def read(path: Path) -> Samples:
    """The samples of a recording, from -1 to 1."""
    with wave.open(str(path)) as file:
        if file.getframerate() != RATE or file.getsampwidth() != 2:
            raise SystemExit(f"{path} must have 16-bit samples at {RATE} Hz")
        data = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
    samples: Samples = data.mean(1, dtype=np.float32) / 32768
    return samples


def probabilities(session: heterocc.runtime.Session, samples: Samples) -> Iterator[float]:
    """For each 32 ms the probability that somebody speaks."""
    state, context = np.zeros((2, 1, 128), np.float32), np.zeros(CONTEXT, np.float32)
    feed = {"sr": np.array(RATE, np.int64)} if any(i.name == "sr" for i in session.inputs) else {}
    for start in range(0, len(samples), STEP):
        piece = samples[start : start + STEP]
        sound = np.concatenate([context, piece, np.zeros(STEP - len(piece), np.float32)])
        results = session.run({**feed, "input": sound[None], "state": state})
        state, context = results["stateN"], sound[-CONTEXT:]
        yield float(results["output"][0, 0])


def intervals(found: list[float], threshold: float) -> Iterator[tuple[float, float]]:
    """Beginnings and ends of speech in seconds."""
    start = None
    for number, probability in enumerate([*found, 0.0]):
        if probability >= threshold and start is None:
            start = number
        elif probability < threshold and start is not None:
            yield start * STEP / RATE, number * STEP / RATE
            start = None


def main() -> None:
    """Print when somebody speaks."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--threshold", type=float, default=0.5, help="the least probability of speech")
    options = parser.parse_args()
    with heterocc.runtime.load(options.bundle) as session:
        found = list(probabilities(session, read(options.recording)))
    print(f"{len(found) * STEP / RATE:.1f} s, probability of speech at most {max(found, default=0.0):.2f}")
    for start, end in intervals(found, options.threshold):
        print(f"  {start:6.2f} s to {end:6.2f} s")


if __name__ == "__main__":
    main()
