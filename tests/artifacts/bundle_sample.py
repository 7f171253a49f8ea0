"""A small bundle with everything that the format has, for the tests of reader and writer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from heterocc.artifacts.manifest import (
    Block,
    Compressed,
    Condition,
    Device,
    Golden,
    Kernel,
    Layout,
    Manifest,
    ModelInfo,
    Partition,
    Producer,
    Range,
    Replacing,
    TensorSpec,
    Variant,
)
from heterocc.artifacts.writer import BundleWriter

CODE = b"\x7fELF not really code"
PLAN = "p0 on GPU: conv\np1 on CPU: relu\np2 on ORT: loop\n"


def spec(name: str, *shape: int | str, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def weights() -> list[np.ndarray]:
    return [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.array(7, dtype=np.int64),
        np.array([True, False, True]),
        np.zeros((0, 3), dtype=np.float16),
        np.arange(12, dtype=np.float32).reshape(4, 3),
        np.linspace(-1, 1, 5),
    ]


LAYOUT = Layout(
    shape=(2, 3, 2), blocks=(Block(extents=(2, 3, 2), start=0, strides=(2, 4, 1), to=0, to_strides=(6, 2, 1)),)
)
"""The first weight in another layout: its columns in pairs."""


def write_sample(
    path: Path,
    code: bytes = CODE,
    name: str = "sample.onnx",
    faults: tuple[str, ...] = (),
    arranged: bool = False,
    dynamic: bool = False,
    rooms: bool = False,
    step: int = 1,
    widened: bool = False,
    contained: bool = False,
    conditioned: bool = False,
    compressed: Compressed | None = None,
    replacing: bool = False,
) -> Manifest:
    """Write the sample: three partitions in the first variant, one in the second.

    The code of the first reads its weight in another layout if `arranged`. A third variant has any batch from 1 to 64
    if `dynamic`, a multiple of `step`, and with `rooms` a fourth one, too, whose GPU reads the input. The second
    variant reads a weight of float16 as float32 if `widened`, and ends with a partition that reads a sequence of the
    first if `contained`. The third variant needs a condition of the batch if `conditioned`. `compressed` is the form of
    the model's weights. If `replacing`, runs may replace the first weight and a text.
    """
    with BundleWriter(path) as writer:
        index = [writer.add_weight(array) for array in weights()]
        halves = [writer.add_weight(np.arange(12, dtype=np.float16))] if widened else []
        for member, data in (("code/p0.so", code), ("code/p1.so", code + b"1"), ("code/p2.onnx", b"onnx")):
            writer.add_member(member, data)
        writer.add_member("code/p0.so.binaries", b"HCLB not really binaries")
        writer.add_member("plan/hetero.plan", PLAN)
        writer.add_member("plan/cpu.plan", "p0 on CPU: all\n")
        writer.add_array("golden/in0.npy", np.ones((1, 4), np.float32))
        writer.add_array("golden/out0.npy", np.full((1, 3), 2, np.float32))
        values = (spec("x", 1, 4), spec("a", 1, 3), spec("b", 1, 3), spec("y", 1, 3), spec("c", dtype="int64"))
        cpu = Device(name="CPU", backend="cpu", target="{}", arch="x86_64", cpu_features=("avx2",))
        gpu = Device(name="GPU", backend="opencl", index=1, target="{}", arch="x86_64", requires=("fp16",))
        hetero = Variant(
            name="hetero",
            devices=(gpu, cpu, Device(name="ORT", backend="ort")),
            values=values,
            inputs=(0,),
            outputs=(3,),
            constants={"4": index[1]},
            partitions=(
                Partition(
                    name="p0",
                    device=0,
                    kind="tvm",
                    code="code/p0.so",
                    binaries="code/p0.so.binaries",
                    inputs=(0,),
                    outputs=(1,),
                    params=(index[0],),
                    param_names=("w",),
                    layouts={"0": LAYOUT} if arranged else {},
                    nodes=("conv",),
                    kernels=(Kernel(symbol="k0", nodes=("conv",), op_types=("Conv",), outputs=("a",)),),
                    checked=True,
                ),
                Partition(
                    name="p1", device=1, kind="tvm", code="code/p1.so", inputs=(1, 4), outputs=(2,), nodes=("relu",)
                ),
                Partition(
                    name="p2",
                    device=2,
                    kind="onnx",
                    code="code/p2.onnx",
                    inputs=(2,),
                    outputs=(3,),
                    params=(index[5], index[2]),
                    param_names=("scale", "mask"),
                    nodes=("loop",),
                ),
            ),
            plan="plan/hetero.plan",
            summary="3 nodes",
        )
        only_cpu = Variant(
            name="cpu",
            devices=(cpu,),
            values=(values[0], values[3]),
            inputs=(0,),
            outputs=(1,),
            partitions=(
                Partition(
                    name="p0",
                    device=0,
                    kind="tvm",
                    code="code/p1.so",
                    inputs=(0,),
                    outputs=(1,),
                    params=tuple(halves),
                    layouts={"0": LAYOUT.model_copy(update={"widens": "float16"})} if widened else {},
                    nodes=("all",),
                ),
            ),
            plan="plan/cpu.plan",
            summary="1 partition",
            notes=("beside GPU",),
        )
        if contained:
            held = TensorSpec(name="s", dtype="seq(tensor(float))", shape=None, elements=(None, 3))
            first = only_cpu.partitions[0].model_copy(update={"outputs": (2,), "sequences": True})
            last = first.model_copy(update={"name": "p1", "inputs": (2,), "outputs": (1,), "params": (), "layouts": {}})
            parts, kept = (first, last), (*only_cpu.values, held)
            only_cpu = only_cpu.model_copy(update={"values": kept, "partitions": parts})
        batch = only_cpu.model_copy(
            update={
                "name": "cpu@batch",
                "values": (spec("x", "batch", 4), spec("y", "batch", 3), *only_cpu.values[2:]),
                "bounds": {"batch": Range(min=1, max=64, step=step)},
                "shapes_of": "cpu",
            }
        )
        if conditioned:
            half: tuple[int | str, ...] = ("$batch", 1, "+", 2, "//")
            needed = Condition(left=half, relation="at_least", right=(2,), node="Pad 'pad'", what="dimension 0")
            batch = batch.model_copy(update={"conditions": (needed,)})
        on_gpu = hetero.model_copy(
            update={
                "name": "hetero@batch",
                "values": (spec("x", "batch", 4), *(spec(name, "batch", 3) for name in "aby"), values[4]),
                "bounds": {"batch": Range(min=1, max=64)},
                "rooms": {"0": 1024},
                "shapes_of": "hetero",
            }
        )
        held = (spec("w", 3, 4), spec("names", 2, dtype="string"))
        others = None
        if replacing:
            part = hetero.partitions[2].model_copy(update={"name": "p0", "device": 0, "inputs": (0, 2, 3)})
            part = part.model_copy(update={"outputs": (1,)})
            variant = only_cpu.model_copy(
                update={
                    "name": "hetero@other values",
                    "devices": (Device(name="ORT", backend="ort"),),
                    "values": (values[0], values[3], *held),
                    "inputs": (0, 2, 3),
                    "partitions": (part,),
                }
            )
            names = writer.add_array("defaults/held1.npy", np.array(["a", "b"]))
            others = Replacing(inputs=held, defaults={"w": index[0], "names": names}, variant=variant)
        golden = Golden(seed=1, inputs={"x": "golden/in0.npy"}, outputs={"y": "golden/out0.npy"}, rtol=1e-4, atol=1e-5)
        ends = [spec("x", "batch", 4), spec("y", "batch", 3)] if dynamic else [spec("x", 1, 4), spec("y", 1, 3)]
        return writer.finish(
            producer=Producer(heterocc="0.1.0", tvm="0.27.0", onnxruntime="1.20.0"),
            model=ModelInfo(
                name=name,
                sha256="0" * 64,
                opsets={"": 17},
                inputs=(ends[0],),
                outputs=(ends[1],),
                held=tuple(value.name for value in held) if replacing else (),
                compressed=compressed,
            ),
            variants=(hetero, only_cpu, *([batch] if dynamic else []), *([on_gpu] if rooms else [])),
            golden=golden,
            goldens=(golden,) if dynamic else (),
            faults=faults,
            replacing=others,
        )
