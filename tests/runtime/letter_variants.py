"""Variants of a bundle whose devices and values are letters, without any code."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from heterocc.artifacts.manifest import Device, Partition, TensorSpec, Variant

DEVICES = {
    "c": Device(name="CPU", backend="cpu"),
    "g": Device(name="OPENCL", backend="opencl"),
    "h": Device(name="OPENCL.1", backend="opencl", index=1),
    "v": Device(name="VULKAN", backend="vulkan"),
    "n": Device(name="CUDA", backend="cuda"),
    "m": Device(name="CUDA.1", backend="cuda", index=1),
    "i": Device(name="OPENCL.2", backend="opencl", index=2),
}


def variant(parts: Sequence[tuple[str, str, str]], inputs: str = "x", outputs: str = "", size: int = 4) -> Variant:
    """A partition is (letter of its device, inputs, outputs); values are letters of `size` floats."""
    values = [*inputs, *(v for _, _, writes in parts for v in writes)]
    letters = list(DEVICES)
    return Variant(
        name="v",
        devices=tuple(DEVICES.values()),
        values=tuple(TensorSpec(name=v, dtype="float32", shape=(size,)) for v in values),
        inputs=tuple(values.index(v) for v in inputs),
        outputs=tuple(values.index(v) for v in outputs or parts[-1][2]),
        partitions=tuple(
            Partition(
                name=f"p{i}",
                device=letters.index(device),
                kind="tvm",
                code="c",
                inputs=tuple(values.index(v) for v in reads),
                outputs=tuple(values.index(v) for v in writes),
                nodes=(f"n{i}",),
            )
            for i, (device, reads, writes) in enumerate(parts)
        ),
        plan="plan",
        summary="",
    )


@st.composite
def chains(draw: st.DrawFn, devices: str) -> Variant:
    """Random partitions on devices of these letters, each reading a few earlier values."""
    parts: list[tuple[str, str, str]] = []
    known = "xz"
    for i in range(draw(st.integers(1, 12))):
        reads = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        writes = [chr(0x100 + 4 * i + k) for k in range(draw(st.integers(1, 2)))]
        parts.append((draw(st.sampled_from(devices)), "".join(reads), "".join(writes)))
        known += "".join(writes)
    outputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
    return variant(parts, inputs="xz", outputs="".join(outputs), size=draw(st.sampled_from([4, 1 << 19])))
