"""Classify images with a bundle of an image network: ResNet, SqueezeNet, MobileNet, EfficientNet and their like.

    heterocc compile resnet50.onnx -o resnet50.hcb
    python examples/image_classification.py resnet50.hcb cat.jpg dog.jpg --labels imagenet.txt

It needs heterocc-runtime and Pillow. The network takes one input of the shape [batch, 3, height, width], with the mean
and the deviation of ImageNet's pixels; a batch may be of a fixed size or dynamic.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

import heterocc.runtime

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
SIZE = 224
"""Height and width for a network that takes any."""


def preprocess(path: Path, height: int, width: int) -> npt.NDArray[np.float32]:
    """The middle of an image at the network's size, as float32[3, height, width]."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    scale = max(height / image.height, width / image.width)
    image = image.resize((round(image.width * scale), round(image.height * scale)))
    left, top = (image.width - width) // 2, (image.height - height) // 2
    pixels = np.asarray(image.crop((left, top, left + width, top + height)), np.float32) / 255
    normal: npt.NDArray[np.float32] = ((pixels - MEAN) / DEVIATION).transpose(2, 0, 1)
    return normal


def probabilities(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Probabilities of the classes, for a network that ends with a softmax or without one."""
    rows: npt.NDArray[np.float32] = scores.reshape(len(scores), -1)
    if rows.min() >= 0 and np.allclose(rows.sum(1), 1, atol=1e-3):
        return rows
    powers = np.exp(rows - rows.max(1, keepdims=True))
    found: npt.NDArray[np.float32] = powers / powers.sum(1, keepdims=True)
    return found


def classify(session: heterocc.runtime.Session, images: list[Path]) -> npt.NDArray[np.float32]:
    """The probabilities of all classes for each image."""
    (info,) = session.inputs
    batch, _, *sizes = info.shape or ()
    height, width = (d if isinstance(d, int) else SIZE for d in sizes)
    pixels = np.stack([preprocess(path, height, width) for path in images])
    step = batch if isinstance(batch, int) else len(images)
    rows = []
    for start in range(0, len(pixels), step):
        part = pixels[start : start + step]
        full = np.concatenate([part, np.zeros((step - len(part), *part.shape[1:]), np.float32)])
        (scores,) = session.run({info.name: full}).values()
        rows.append(probabilities(scores)[: len(part)])
    return np.concatenate(rows)


def main() -> None:
    """Print the five most probable classes of each image."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("images", type=Path, nargs="+")
    parser.add_argument("--labels", type=Path, help="a text file with the name of a class in each line")
    parser.add_argument("--devices", help="the variant, as in `heterocc run`")
    options = parser.parse_args()
    labels = options.labels.read_text().splitlines() if options.labels else []
    with heterocc.runtime.load(options.bundle, options.devices) as session:
        for path, row in zip(options.images, classify(session, options.images), strict=True):
            print(path)
            for number in np.argsort(-row)[:5]:
                print(f"  {row[number]:7.2%}  {labels[number] if number < len(labels) else f'class {number}'}")


if __name__ == "__main__":
    main()
