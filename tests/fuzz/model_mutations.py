"""Mutants of small ONNX models, imported in processes of some tens, with limits on memory and time.

`python model_mutations.py 0 10000 DIRECTORY` tries mutants 0 to 9999 and writes those that fail into the directory. A
mutant is one number: the same number gives the same model.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from tests.fuzz.mutation_seeds import DATA_FILE, SEEDS

SECONDS, PATIENCE = 10, 180
"""Of the processor, and of the clock, which a busy machine and a deadlock need, that a mutant may take."""

TOGETHER = 50
"""Mutants of a process; one that ends it ends the others' process too, which then get a new one."""

MEMORY = 2 << 30
"""Bytes of address space that the mutants of a process may take beside what it has at its start."""

PARTITIONED, COMPILED, OPENED = 4, 64, 3
"""Of so many mutants one is also placed, or compiled, which takes longer, or has named dimensions in its inputs."""

_INTEGERS = (0, 1, -1, 2, 7, 16, 63, 65, 255, 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -1.0, 1e-45, 3e38, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "x", "y", "ai.onnx", "com.microsoft", "../x", "/etc/passwd", "a\0b", "é模", "n" * 3000, "7" * 5000, "-1")
_OPERATORS = (
    "Add Cast CastLike Concat Constant ConstantOfShape Conv Dropout Expand Gather Identity If Loop MatMul NonZero "
    "OneHot Pad Range ReduceSum Reshape Resize SequenceAt Shape Size Slice Softmax Split Squeeze Sum Tile TopK "
    "Transpose Unsqueeze Where"
).split()


# ---- mutants ------------------------------------------------------------------------------------------------------


def mutant(number: int) -> tuple[str, bytes]:
    """A seed's name and its mutated bytes."""
    rng = random.Random(number)
    name = rng.choice(sorted(SEEDS))
    data = SEEDS[name]
    if rng.random() < 0.25:
        return name, _bytes(data, rng)
    model = onnx.ModelProto.FromString(data)
    mild = rng.random() < 0.4
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if mild:
            _vary(model, rng)
        else:
            _change(model, rng)
    if number % OPENED == 1:
        _open(model)
    data = model.SerializeToString()
    return name, _bytes(data, rng) if rng.random() < 0.1 else data


def _open(model: onnx.ModelProto) -> None:
    """Give the dimensions of inputs names, the same to the same sizes; shapes inside are left to be inferred."""
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value > 0:
                dim.dim_param = f"d{dim.dim_value}"
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]


def _bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed))
        kind = rng.randrange(5)
        if kind == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2:
            del changed[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            changed[at:at] = rng.randbytes(rng.randrange(1, 5))
        else:
            start = rng.randrange(len(changed))
            changed[at:at] = changed[start : start + rng.randrange(1, 40)]
        if not changed:
            return b"\0"
    return bytes(changed)


def _change(model: onnx.ModelProto, rng: random.Random) -> None:
    """Change one field of one message, any kind of message with the same probability."""
    kinds: dict[str, list[Any]] = {}
    for message in _messages(model):
        kinds.setdefault(message.DESCRIPTOR.name, []).append(message)
    message = rng.choice(kinds[rng.choice(sorted(kinds))])
    present = [f.name for f, _ in message.ListFields()]
    fields = {f.name: f for f in message.DESCRIPTOR.fields}
    name = rng.choice(present) if present and rng.random() < 0.8 else rng.choice(sorted(fields))
    field = fields[name]
    if rng.random() < 0.15:
        message.ClearField(name)
    elif field.message_type is not None:
        _change_messages(message, field, kinds, rng)
    elif field.is_repeated:
        _change_list(getattr(message, name), field, rng)
    else:
        setattr(message, name, _value(field, rng))


def _vary(model: onnx.ModelProto, rng: random.Random) -> None:
    """Change a node so that the model may stay valid: its inputs, its operator, a number of an attribute."""
    graphs = [m for m in _messages(model) if m.DESCRIPTOR.name in ("GraphProto", "FunctionProto") and m.node]
    graph = rng.choice(graphs)
    node = rng.choice(list(graph.node))
    names = [name for n in graph.node for name in (*n.input, *n.output)]
    kind = rng.randrange(6)
    if kind == 0 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
    elif kind == 1:
        node.op_type = rng.choice(_OPERATORS)
    elif kind == 2 and node.input:
        node.input.append(rng.choice((*names, "")))
    elif kind == 3 and node.attribute:
        attribute = rng.choice(list(node.attribute))
        attribute.i += rng.choice((-1, 1, 2))
        for index in range(len(attribute.ints)):
            attribute.ints[index] += rng.choice((-1, 0, 1, 3))
    elif kind == 4:
        new = graph.node.add(op_type=rng.choice(_OPERATORS), input=rng.choices(names, k=rng.randrange(1, 4)))
        new.output.append(f"new{len(graph.node)}")
        if hasattr(graph, "initializer"):
            graph.output.add(name=new.output[0])
    else:
        dims = [m for m in _messages(model) if m.DESCRIPTOR.name == "Dimension"]
        if dims:
            rng.choice(dims).dim_value = rng.choice((0, 1, 2, 3, 5, 8, 64))


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                yield from _messages(inner)


def _change_messages(message: Any, field: Any, kinds: dict[str, list[Any]], rng: random.Random) -> None:
    others = kinds.get(field.message_type.name, [])
    other = type(rng.choice(others)).FromString(rng.choice(others).SerializeToString()) if others else None
    if not field.is_repeated:
        if other is not None:
            getattr(message, field.name).CopyFrom(other)
        else:
            getattr(message, field.name).SetInParent()
        return
    held = getattr(message, field.name)
    kind = rng.randrange(5)
    if kind == 0 or not held:
        new = held.add()
        if other is not None:
            new.CopyFrom(other)
    elif kind == 1:
        del held[rng.randrange(len(held))]
    elif kind == 2:
        held.add().CopyFrom(held[rng.randrange(len(held))])
    elif kind == 3 and other is not None:
        held[rng.randrange(len(held))].CopyFrom(other)
    else:
        copies = [type(m).FromString(m.SerializeToString()) for m in held]
        rng.shuffle(copies)
        del held[:]
        held.extend(copies)


def _change_list(held: Any, field: Any, rng: random.Random) -> None:
    kind = rng.randrange(5)
    if kind == 0 or not held:
        held.append(_value(field, rng))
    elif kind == 1:
        del held[rng.randrange(len(held))]
    elif kind == 2:
        held[rng.randrange(len(held))] = _value(field, rng)
    elif kind == 3:
        held.extend([rng.choice(list(held))] * rng.choice((1, 3, 70, 1000)))
    else:
        at, other = rng.randrange(len(held)), rng.randrange(len(held))
        held[at], held[other] = held[other], held[at]


def _value(field: Any, rng: random.Random) -> Any:
    if field.type == field.TYPE_STRING:
        return rng.choice(_OPERATORS if field.name == "op_type" and rng.random() < 0.7 else _TEXTS)
    if field.type == field.TYPE_BYTES:
        return rng.choice((b"", b"\xff\xfe", b"x", rng.randbytes(rng.randrange(1, 64)), bytes(4096)))
    if field.enum_type is not None:
        return rng.choice([v.number for v in field.enum_type.values])
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return rng.choice(_FLOATS)
    if field.name in ("data_type", "elem_type", "key_type", "type") and rng.random() < 0.8:
        return rng.randrange(32)
    number = rng.choice(_INTEGERS)
    if field.type == field.TYPE_INT32:
        return max(-(2**31), min(number, 2**31 - 1))
    return number % 2**64 if field.type == field.TYPE_UINT64 else number


# ---- trying them --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """A mutant that ended in anything but a result or an error of the user's input, and how."""

    number: int
    seed: str
    how: str


def attempt(number: int, path: Path) -> None:
    """Import a mutant, place and compile some; raises their errors."""
    from heterocc.compiler import compile_model, partition_model
    from heterocc.compiler.importer.pipeline import import_model

    if number % COMPILED == 0:
        compile_model(path, path.parent / "m.hcb", devices="CPU,ORT")
    elif number % PARTITIONED == 0:
        partition_model(path, devices="CPU,ORT")
    else:
        import_model(path, keep_dims=number % OPENED == 1)


def _ended(number: int, path: Path) -> tuple[bool, str]:
    """Whether there was a result, and what is wrong if there was neither a result nor an error of the user's input."""
    from heterocc.artifacts.errors import HeteroccError, InternalError, PassError

    try:
        attempt(number, path)
        return True, ""
    except HeteroccError as error:
        if not isinstance(error, (PassError, InternalError)):
            str(error).encode()
            return False, ""
        return False, traceback.format_exc()
    except BaseException:
        return False, traceback.format_exc()


def _child(numbers: range, folder: Path, report: int) -> None:
    """Try mutants in this process, and write a line for each."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in numbers:
        path = folder / "m.onnx"
        path.write_bytes(mutant(number)[1])
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # ends the process
        result, how = _ended(number, path)
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(report, json.dumps([result, how[-3000:]]).encode() + b"\n")


def _try(numbers: range, folder: Path) -> list[tuple[bool, str]]:
    """What became of the first mutants of `numbers`, in a process of their own: all, or up to one that ended it."""
    ours, report = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            _child(numbers, folder, report)
        finally:
            os._exit(0)
    os.close(report)
    said, hung = b"", False
    while not hung:
        hung = not select.select([ours], [], [], PATIENCE)[0]
        data = b"" if hung else os.read(ours, 1 << 16)
        if not data:
            break
        said += data
    os.close(ours)
    os.kill(process, signal.SIGKILL)  # it hangs, or has ended
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    ended: list[tuple[bool, str]] = [tuple(json.loads(line)) for line in said.split(b"\n")[:-1]]
    if len(ended) < len(numbers):
        how = f"no end in {PATIENCE} seconds" if hung else f"the process ended with status {code}"
        ended.append((False, how))
    return ended


def try_all(first: int, count: int, kept: Path) -> tuple[int, int, list[Failure]]:
    """Numbers of results and of refusals, and the failures, whose models are written into `kept`."""
    import heterocc.compiler.pipeline.compile  # noqa: F401  # loaded once, before the processes divide
    from heterocc.compiler.lower import lowering_for  # noqa: F401

    results, failures = 0, []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / DATA_FILE).write_bytes(bytes(range(256)) * 4)
        os.environ["HETEROCC_CACHE"] = str(folder / "cache")
        left = range(first, first + count)
        while left:
            ended = _try(left[:TOGETHER], folder)
            for number, (result, how) in zip(left, ended, strict=False):
                if how and number > left[0]:  # alone, because those before it may have left too little memory
                    ((result, how),) = _try(range(number, number + 1), folder)
                results += result
                if how:
                    seed, data = mutant(number)
                    failures.append(Failure(number, seed, how))
                    path = kept / f"mutant-{number}.onnx"
                    path.write_bytes(data)
                    print(f"mutant {number} of '{seed}', kept as {path}: {how}\n", flush=True)
            left = left[len(ended) :]
    return results, count - results - len(failures), failures


if __name__ == "__main__":
    results, refused, failed = try_all(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    print(f"{results} results, {refused} refused, {len(failed)} failed")
    raise SystemExit(bool(failed))
