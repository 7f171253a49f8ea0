"""Small networks of the kinds that people bring, built here with seeded weights and kept in the models' cache.

They stand for families (MobileNet, U-Net, BERT, …) by their operators and shapes, not by their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from tests import image_networks as image
from tests import models
from tests import sequence_networks as sequence

NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    build.__name__: build
    for build in (
        image.mobilenet_v2,
        image.mobilenet_v3,
        image.efficientnet,
        image.squeeze_excite,
        image.convnext,
        image.unet,
        image.dilated,
        image.yolo,
        image.super_resolution,
        image.style_transfer,
        image.gan,
        image.grouped,
        image.large_kernels,
        image.one_channel,
        image.batch_of_four,
        image.conv3d,
        sequence.bert,
        sequence.bert_unmasked,
        sequence.vit,
        sequence.lstm_gru,
        sequence.conv1d,
        sequence.waveform,
        sequence.recognition_head,
        sequence.mlp,
        sequence.few_rows,
        sequence.gemms,
    )
}
"""The builder of each network, by its name."""

_VERSION = 1
"""Raised when a network or its seeded weights change, so that an old cache is not used."""


def network(name: str, folder: Path | None = None) -> Path:
    """Path of one of the networks, built on first use, in the models' cache or in `folder`."""
    path = (folder or models.cache_dir()) / f"network-{name}-{_VERSION}.onnx"
    if not path.is_file():
        models.write_entry(path, NETWORKS[name]().SerializeToString())
    return path
