"""Bundles whose manifest or members are changed, every hash made anew: what somebody who can write a bundle may do."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.artifacts.bundle_forge import contents, pack, rehash, with_manifest

Tree = Any

NUMBERS = (0, 1, -1, 2, 3, 7, 63, 64, 255, 1024, 2**31 - 1, 2**31, 2**32, 2**48, 2**62, 2**63 - 1, 2**63, 2**64, 10**40)
TEXTS = (
    *("", "x", "y", "float32", "float64", "int64", "bool", ">f4", "complex64", "bfloat16", "string", "longdouble"),
    *(
        "seq(tensor(float))",
        ",",
        "(2,",
        "²",
        "٤",
        "9" * 50,
        "\x00",
        "\x1b[31m",
        "\u202e",
        "模型",
        "é" * 5000,
        "a" * 300,
    ),
    *(
        "/etc/passwd",
        "../x",
        "weights.bin",
        "manifest.json",
        "cpu",
        "opencl",
        "ort",
        "tvm",
        "onnx",
        "main",
        "f16",
        "on",
    ),
    *("0", "100000"),
)
OTHERS: tuple[Any, ...] = (None, True, False, 1.5, -0.0, 1e308, [], {}, [[]], [None], {"": None}, [0] * 40)


class Mutator:
    """Changes of one bundle, drawn from a seed."""

    def __init__(self, bundle: Path, seed: int) -> None:
        self._members = contents(bundle)
        self._manifest = json.loads(self._members["manifest.json"])
        self._rng = random.Random(seed)

    def manifest(self, path: Path) -> None:
        """Write the bundle with one to three changes of its manifest's structure."""
        tree = copy.deepcopy(self._manifest)
        for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
            change_tree(tree, self._rng)
        text = json.dumps(tree).encode("utf-8", "surrogatepass")
        if self._rng.random() < 0.03:
            text = damage(text, self._rng)
        pack(path, with_manifest(self._members, text))

    def members(self, path: Path, of: Callable[[str], bool]) -> None:
        """Write the bundle with one member changed, of those that `of` takes; tensors get their new hashes too."""
        names = [n for n in self._members if of(n) and n not in ("manifest.json", "manifest.sha256")]
        name = self._rng.choice(names)
        members = {**self._members, name: damage(self._members[name], self._rng)}
        manifest = copy.deepcopy(self._manifest)
        rehash(manifest, members)
        _rehash_weights(manifest, members["weights.bin"])
        pack(path, with_manifest(members, json.dumps(manifest).encode()))


def damage(data: bytes, rng: random.Random) -> bytes:
    """A change of bytes without regard to their meaning."""
    changed = bytearray(data)
    at = rng.randrange(len(data) + 1)
    match rng.randrange(7):
        case 0:
            return bytes(changed[:at])
        case 1:
            changed[at:at] = rng.randbytes(rng.choice((1, 4, 64)))
        case 2:
            del changed[at : at + rng.choice((1, 4, 64))]
        case 3:
            return rng.randbytes(rng.choice((0, 1, 100)))
        case 4:
            changed[at:at] = changed[:at][-rng.choice((1, 20, 200)) :]
        case _:
            for _ in range(rng.choice((1, 1, 2, 8))):
                if changed:
                    place = rng.randrange(len(changed))
                    changed[place] = rng.choice((0, 0xFF, 0x7F, changed[place] ^ 1 << rng.randrange(8)))
    return bytes(changed)


# ---- of JSON ------------------------------------------------------------------------------------------------------


def change_tree(tree: Tree, rng: random.Random) -> None:
    """One change of parsed JSON: a value replaced, removed, doubled, exchanged with another, or a little different."""
    rng.choice((_value, _value, _delete, _double, _swap, _nudge))(tree, rng)


def _value(tree: Tree, rng: random.Random) -> None:
    place, key = _place(tree, rng)
    old = place[key]
    if isinstance(old, bool) or rng.random() < 0.25:
        place[key] = copy.deepcopy(rng.choice((*NUMBERS, *TEXTS, *OTHERS)))
    elif isinstance(old, int):
        place[key] = rng.choice(NUMBERS)
    elif isinstance(old, str):
        place[key] = rng.choice((*TEXTS, old + "x", old[:-1], old.upper(), old[::-1]))
    else:
        place[key] = copy.deepcopy(rng.choice(OTHERS))


def _delete(tree: Tree, rng: random.Random) -> None:
    place, key = _place(tree, rng)
    del place[key]


def _double(tree: Tree, rng: random.Random) -> None:
    place, key = _place(tree, rng)
    if isinstance(place, list):
        place.insert(key, copy.deepcopy(place[key]))
    else:
        place[f"{key}2"] = copy.deepcopy(place[key])


def _swap(tree: Tree, rng: random.Random) -> None:
    """Two values of one type change places, wherever they are."""
    first, one = _place(tree, rng)
    others = [(p, k) for p, k in _places(tree) if type(p[k]) is type(first[one]) and not _inside(p[k], first[one])]
    second, other = rng.choice(others or [(first, one)])
    first[one], second[other] = copy.deepcopy(second[other]), copy.deepcopy(first[one])


def _nudge(tree: Tree, rng: random.Random) -> None:
    numbers = [(p, k) for p, k in _places(tree) if type(p[k]) is int]
    if numbers:
        place, key = rng.choice(numbers)
        place[key] += rng.choice((-1, 1, 1, 2, 64, -64))


def _place(tree: Tree, rng: random.Random) -> tuple[Tree, Any]:
    return rng.choice(list(_places(tree)) or [({"x": 0}, "x")])


def _places(tree: Tree) -> Iterator[tuple[Tree, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def _inside(one: Tree, other: Tree) -> bool:
    """Whether one of two values holds the other, so that they cannot change places."""
    held = lambda a, b: a is b or any(p[k] is b for p, k in _places(a))  # noqa: E731
    return isinstance(one, (dict, list)) and (held(one, other) or held(other, one))


def _rehash_weights(manifest: Tree, data: bytes) -> None:
    import hashlib

    for weight in manifest["weights"]:
        weight["sha256"] = hashlib.sha256(data[weight["offset"] : weight["offset"] + weight["nbytes"]]).hexdigest()
