"""Structure-aware mutants: JSON by its values, text by its tokens, zips and containers of code by their fields.

A mutant is one number: the same number gives the same bytes. Lengths, counts and checksums are made to fit again in
most mutants, so that a change reaches what the reader checks after them.
"""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.mutations import NUMBERS, TEXTS, change_tree, damage

Random = random.Random


# ---- JSON and text ------------------------------------------------------------------------------------------------


def json_mutant(data: bytes, rng: Random) -> bytes:
    """One to three changes of the values of a JSON text."""
    tree = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change_tree(tree, rng)
    text = json.dumps(tree).encode("utf-8", "surrogatepass")
    return damage(text, rng) if rng.random() < 0.05 else text


_TOKEN = re.compile(rb"\"[^\"\n]*\"|[A-Za-z0-9_+/.-]+|\s+|.", re.DOTALL)


def text_mutant(data: bytes, rng: Random) -> bytes:
    """One to four changes of the tokens or lines of a text: replaced, removed, doubled or exchanged."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        parts = data.splitlines(keepends=True) if rng.random() < 0.3 else _TOKEN.findall(data)
        if not parts:
            return rng.randbytes(8)
        at, other = rng.randrange(len(parts)), rng.randrange(len(parts))
        match rng.randrange(6):
            case 0:
                parts[at] = _quoted(rng.choice(TEXTS))
            case 1:
                parts[at] = str(rng.choice(NUMBERS)).encode()
            case 2:
                del parts[at]
            case 3:
                parts[at:at] = [parts[other]] * rng.choice((1, 1, 3, 200))
            case 4:
                parts[at], parts[other] = parts[other], parts[at]
            case _:
                parts[at] = damage(parts[at], rng)
        data = b"".join(parts)
    return data


def _quoted(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")


# ---- binary formats -----------------------------------------------------------------------------------------------


@dataclass
class Number:
    """An integer of `width` bytes."""

    width: int
    value: int

    def pack(self) -> bytes:
        return (self.value % (1 << 8 * self.width)).to_bytes(self.width, "little")


@dataclass
class Text:
    """A length and as many bytes; `wrong` is added to the length, 0 without `width`."""

    width: int
    data: bytes
    wrong: int = 0

    def pack(self) -> bytes:
        return Number(self.width, len(self.data) + self.wrong).pack() + self.data


@dataclass
class Items:
    """A count, if there is a `width`, and as many items of the parts that `item` reads."""

    width: int
    items: list[Any] = field(default_factory=list)
    wrong: int = 0

    def pack(self) -> bytes:
        count = Number(self.width, len(self.items) + self.wrong).pack() if self.width else b""
        return count + b"".join(item.pack() for item in self.items)


_WRONG = (-1, 1, 2, 1000, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def fields_mutant(tree: Items, rng: Random) -> bytes:
    """One to four changes of the parts of `tree`, which is changed, too."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        parts: list[Any] = []
        _collect(tree, parts)
        kind = rng.choice(sorted({type(p).__name__ for p in parts}))  # of thousands of numbers, a few lists matter more
        part = rng.choice([p for p in parts if type(p).__name__ == kind])
        if isinstance(part, Number):
            _change_number(part, [p.value for p in parts if isinstance(p, Number)], rng)
        elif rng.random() < 0.15:
            part.wrong = rng.choice(_WRONG)
        elif isinstance(part, Text):
            others = [p.data for p in parts if isinstance(p, Text)]
            changes = (damage(part.data, rng), b"", part.data * 2, rng.choice(TEXTS).encode(), rng.choice(others))
            part.data = rng.choice(changes)
        elif part.items:
            at, other = rng.randrange(len(part.items)), rng.randrange(len(part.items))
            match rng.randrange(4):
                case 0:
                    del part.items[at]
                case 1:
                    part.items[at:at] = [part.items[other]] * rng.choice((1, 1, 2, 40))
                case 2:
                    part.items[at], part.items[other] = part.items[other], part.items[at]
                case _:
                    del part.items[at:]
    data = tree.pack()
    return damage(data, rng) if rng.random() < 0.05 else data


def _change_number(part: Number, others: Sequence[int], rng: Random) -> None:
    match rng.randrange(4):
        case 0:
            part.value = rng.choice(NUMBERS)
        case 1:
            part.value += rng.choice((-1, 1, 2, -8, 8, 64))
        case 2:
            part.value ^= 1 << rng.randrange(8 * part.width)
        case _:
            part.value = rng.choice(others)


def _collect(part: Any, into: list[Any]) -> None:
    into.append(part)
    if isinstance(part, Items):
        for item in part.items:
            _collect(item, into)


class _Bytes:
    """The bytes of a seed, taken part by part."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, width: int) -> Number:
        return Number(width, int.from_bytes(self.take(width), "little"))

    def numbers(self, *widths: int) -> list[Any]:
        return [self.number(width) for width in widths]

    def text(self, width: int) -> Text:
        return Text(width, self.take(self.number(width).value))

    def items(self, width: int, item: Callable[[], Any]) -> Items:
        return Items(width, [item() for _ in range(self.number(width).value)])


def vulkan_module(data: bytes) -> Items:
    """A Vulkan module, whose SPIR-V is a list of instructions of words."""
    seed = _Bytes(data)

    def kernel() -> Items:
        parts = [seed.text(4), *seed.numbers(4, 4)]
        parts.append(seed.items(4, lambda: Items(0, seed.numbers(1, 1, 1, 1, 4))))
        parts.append(seed.items(4, lambda: seed.text(4)))
        parts += seed.numbers(4, 4, 4, 4, 4)
        return Items(0, [*parts, _Spirv(struct.unpack(f"<{(n := seed.number(4).value)}I", seed.take(4 * n)))])

    return Items(0, [Text(0, seed.take(4)), seed.number(4), seed.items(4, kernel)])


class _Spirv(Items):
    """A count of words, five words of a header, and instructions, each with its number of words in its first one."""

    def __init__(self, words: Sequence[int]) -> None:
        super().__init__(0, [Items(0, [Number(4, w) for w in words[:5]])])
        at = 5
        while at < len(words):
            length = max(1, words[at] >> 16)
            self.items.append(Items(0, [Number(4, w) for w in words[at : at + length]]))
            at += length

    def pack(self) -> bytes:
        for instruction in self.items[1:]:  # operands may have been removed or doubled
            if instruction.items:
                first = instruction.items[0]
                first.value = (len(instruction.items) + instruction.wrong) % 0x10000 << 16 | first.value & 0xFFFF
        data = super().pack()
        return Number(4, len(data) // 4 + self.wrong).pack() + data


def opencl_module(data: bytes) -> Items:
    """An OpenCL module in TVM's form."""
    seed = _Bytes(data)

    def kernel() -> Items:
        return Items(
            0,
            [
                *(seed.text(8), seed.text(8)),
                seed.items(8, lambda: Items(0, seed.numbers(1, 1, 2))),
                *(seed.items(8, lambda: seed.text(8)), seed.items(8, lambda: seed.number(4))),
            ],
        )

    return Items(0, [seed.text(8), seed.items(8, kernel), seed.text(8)])


def opencl_binaries(data: bytes) -> Items:
    """A package of OpenCL binaries."""
    seed = _Bytes(data)
    head = [Text(0, seed.take(4)), seed.number(4)]
    return Items(0, [*head, seed.items(4, lambda: Items(0, [Text(0, seed.take(32)), seed.text(8)]))])


_RECORD_PARTS = 18
"""Of a record of a zip's directory; the third from the end is the member's offset."""


def zip_mutant(data: bytes, rng: Random) -> bytes:
    """A zip of stored members with fields of its headers changed; offsets that follow from others fit in half."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        listed = [(i.filename.encode(), archive.read(i), i.CRC, i.header_offset) for i in archive.infolist()]
    members, records = [], []
    for name, content, crc, start in listed:
        header = _Bytes(data[start:])
        head = [Text(0, header.take(4)), *header.numbers(2, 2, 2, 2, 2)]
        header.take(12)
        size, extra = header.number(2).value, header.number(2).value
        header.take(size)
        numbers = [Number(4, crc), Number(4, len(content)), Number(4, len(content)), Number(2, size), Number(2, extra)]
        members.append(Items(0, [*head, *numbers, Text(0, name), Text(0, header.take(extra)), Text(0, content)]))
        fixed = [Text(0, b"PK\1\2"), *(Number(2, n) for n in (3 << 8 | 45, 20, 0, 0, 0, 0x21))]
        numbers = [Number(4, crc), Number(4, len(content)), Number(4, len(content))]
        tail = [*(Number(2, n) for n in (size, 0, 0, 0, 0)), Number(4, 0o100644 << 16), Number(4, start)]
        records.append(Items(0, [*fixed, *numbers, *tail, Text(0, name), Text(0, b"")]))
    length, begin = Number(4, sum(len(r.pack()) for r in records)), Number(4, sum(len(m.pack()) for m in members))
    end = [Text(0, b"PK\5\6"), *(Number(2, n) for n in (0, 0, len(records), len(records)))]
    held, listing = Items(0, members), Items(0, records)
    whole = Items(0, [held, listing, Items(0, [*end, length, begin, Number(2, 0)])])
    mutant = fields_mutant(whole, rng)
    if rng.random() < 0.5:
        return mutant
    at = 0  # made to fit
    for member, record in zip(held.items, listing.items, strict=False):
        if len(record.items) == _RECORD_PARTS:
            record.items[-3].value = at
        at += len(member.pack())
    length.value, begin.value = len(listing.pack()), len(held.pack())
    return whole.pack()


# ---- arrays and requests ------------------------------------------------------------------------------------------


def npy_mutant(data: bytes, rng: Random) -> bytes:
    """An array file with its header's tokens changed; the header's length fits."""
    end = 10 + int.from_bytes(data[8:10], "little")
    header = text_mutant(data[10:end], rng)[:0xFFFF]
    body = damage(data[end:], rng) if rng.random() < 0.2 else data[end:]
    changed = data[:8] + len(header).to_bytes(2, "little") + header + body
    return damage(changed, rng) if rng.random() < 0.1 else changed


def npz_mutant(data: bytes, rng: Random) -> bytes:
    """A zip of arrays, one of them changed, its checksum right; or with fields of the zip changed."""
    if rng.random() < 0.3:
        return zip_mutant(data, rng)
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", rng.choice((0, 8))) as new:
        for name in old.namelist():
            member = old.read(name)
            changed = npy_mutant(member, rng) if name.endswith(".npy") and rng.random() < 0.8 else damage(member, rng)
            new.writestr(name if rng.random() < 0.8 else rng.choice(TEXTS).replace("\0", "") or "x", changed)
    return made.getvalue()


def request_mutant(data: bytes, rng: Random) -> bytes:
    """An HTTP request's JSON with values changed; of binary tensors, behind the first zero byte, only the bytes."""
    head, zero, tail = data.partition(b"\0")
    return json_mutant(head, rng) + zero + (damage(tail, rng) if rng.random() < 0.2 else tail)
