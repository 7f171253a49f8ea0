"""The zip container of a bundle: stored members, fixed headers, every offset checked before use (FORMAT.md).

This is not a general zip library: it writes and reads only structures that a bundle may contain. Numbers such as 4.3.7
refer to sections of PKWARE's APPNOTE.TXT.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from heterocc.artifacts.errors import BundleError
from heterocc.artifacts.frozen import frozen

PAGE = 4096
MAX_NAME = 255
MAX_MEMBERS = 32768
MAX_MANIFEST = 16 * 2**20

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCATOR64 = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")

_LOCAL_MAGIC = b"PK\x03\x04"
_CENTRAL_MAGIC = b"PK\x01\x02"
_END_MAGIC = b"PK\x05\x06"
_LOCATOR64_MAGIC = b"PK\x06\x07"
_END64_MAGIC = b"PK\x06\x06"

_STORED = 0
_DATE, _TIME = 0x0021, 0x0000  # 1980-01-01 00:00:00, the earliest time that a zip can store
_MADE_BY = 3 << 8 | 45  # Unix, so that the mode below is interpreted
_MODE = (stat.S_IFREG | 0o644) << 16
_ZIP64_ID = 0x0001
_PADDING_ID = 0xD935  # the id that zipalign uses
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_MAX_DIRECTORY = MAX_MEMBERS * (_CENTRAL.size + MAX_NAME + 64)

_NAME = re.compile(r"[A-Za-z0-9_+=,@-][A-Za-z0-9_.+=,@-]*(/[A-Za-z0-9_+=,@-][A-Za-z0-9_.+=,@-]*)*")


@frozen
class Entry:
    """One member: `size` bytes at file offset `data`, its header at `header`; `crc` is zip's CRC-32 of the bytes."""

    name: str
    size: int
    crc: int
    header: int
    data: int

    @property
    def end(self) -> int:
        """File offset after the last byte."""
        return self.data + self.size


@frozen
class _Listed:
    """A central directory record before any check."""

    name: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    header: int
    mode: int


def name_is_safe(name: str) -> bool:
    """Return whether a member may have this name: relative, ASCII, no component empty or beginning with a full stop."""
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


# ---- writing ------------------------------------------------------------------------------------------------------


def local_header(name: str, size: int, crc: int, length: int | None = None) -> bytes:
    """A local header (4.3.7), padded to `length` bytes, if given, by an extra field."""
    encoded = name.encode("ascii")
    extra = b""
    packed = size
    if size >= _MAX32:
        extra, packed = struct.pack("<2H2Q", _ZIP64_ID, 16, size, size), _MAX32
    if length is not None:
        padding = length - _LOCAL.size - len(encoded) - len(extra) - 4
        extra += struct.pack("<2H", _PADDING_ID, padding) + bytes(padding)
    needs = 45 if packed == _MAX32 else 20
    fields = (needs, 0, _STORED, _TIME, _DATE, crc, packed, packed, len(encoded), len(extra))
    return _LOCAL.pack(_LOCAL_MAGIC, *fields) + encoded + extra


def directory(entries: Iterable[Entry], start: int) -> bytes:
    """Central directory and end records (4.3.12, 4.3.14–4.3.16) of `entries` for a directory at offset `start`."""
    records = bytearray()
    count = 0
    for entry in entries:
        encoded = entry.name.encode("ascii")
        wide = b"".join(struct.pack("<Q", v) for v in (entry.size, entry.size, entry.header) if v >= _MAX32)
        extra = struct.pack("<2H", _ZIP64_ID, len(wide)) + wide if wide else b""
        size, header = min(entry.size, _MAX32), min(entry.header, _MAX32)
        needs = 45 if wide else 20
        records += _CENTRAL.pack(
            *(_CENTRAL_MAGIC, _MADE_BY, needs, 0, _STORED, _TIME, _DATE, entry.crc, size, size),
            *(len(encoded), len(extra), 0, 0, 0, _MODE, header),
        )
        records += encoded + extra
        count += 1
    length = len(records)
    if start >= _MAX32 or length >= _MAX32 or count >= _MAX16:
        fields = (_END64.size - 12, _MADE_BY, 45, 0, 0, count, count, length, start)
        records += _END64.pack(_END64_MAGIC, *fields)
        records += _LOCATOR64.pack(_LOCATOR64_MAGIC, 0, start + length, 1)
    short = min(count, _MAX16)
    records += _END.pack(_END_MAGIC, 0, 0, short, short, min(length, _MAX32), min(start, _MAX32), 0)
    return bytes(records)


# ---- reading ------------------------------------------------------------------------------------------------------


class Container:
    """The directory of an open zip; members are checked one by one by `locate`, and all together by `entries`.

    Reads through `fd` only, after comparing offset and size with the file's `size`.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size
        self._start, self._listed = self._read_directory()

    def has(self, name: str) -> bool:
        """Return whether the directory lists a member `name`."""
        return name in self._listed

    def locate(self, name: str) -> Entry:
        """The member `name`, its local header checked against the directory; BundleError if absent or malformed."""
        listed = self._listed.get(name)
        if listed is None:
            raise BundleError(
                f"the bundle has no member '{name}'", hint="this is not a heterocc bundle, or it is damaged"
            )
        return self._check(listed)

    def entries(self) -> Mapping[str, Entry]:
        """All members in file order; they must cover the file up to the directory without gap or overlap."""
        position = 0
        found: dict[str, Entry] = {}
        for listed in self._listed.values():
            if listed.header != position:
                raise BundleError(
                    f"member {listed.name!r} is at offset {listed.header}, not at {position}: gap or overlap"
                )
            entry = self._check(listed)
            found[entry.name] = entry
            position = entry.end
        if position != self._start:
            raise BundleError(f"the directory is at offset {self._start}, not at {position}")
        return MappingProxyType(found)

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes at `offset`; BundleError if the file has fewer."""
        if offset < 0 or length < 0 or offset + length > self._size:
            raise BundleError(f"{length} bytes at offset {offset} are outside the file ({self._size} bytes)")
        parts = []
        while length:
            part = os.pread(self._fd, length, offset)
            if not part:
                raise BundleError("the file became shorter while it was read")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)

    def _read_directory(self) -> tuple[int, dict[str, _Listed]]:
        if self._size < _END.size:
            raise BundleError("the file is not a bundle: it is shorter than a zip's end record")
        end = self._size - _END.size
        magic, disk, first, here, count, length, start, comment = _END.unpack(self.read(end, _END.size))
        if magic != _END_MAGIC:
            raise BundleError("the file is not a bundle, or it is cut short: it does not end with a zip's end record")
        if disk or first or comment or here != count:
            raise BundleError("the zip's end record is malformed")
        limit = end
        if _MAX16 in (count,) or _MAX32 in (length, start):
            limit, count, length, start = self._read_end64(end)
        if count > MAX_MEMBERS or length > _MAX_DIRECTORY:
            raise BundleError(f"the zip lists {count} members in {length} bytes, more than a bundle may have")
        if start + length != limit:
            raise BundleError("the zip's directory does not end where the end record begins")
        return start, self._parse(self.read(start, length), count)

    def _read_end64(self, end: int) -> tuple[int, int, int, int]:
        if end < _LOCATOR64.size + _END64.size:
            raise BundleError("the zip's end record refers to a zip64 record that is missing")
        position = end - _LOCATOR64.size
        magic, disk, where, disks = _LOCATOR64.unpack(self.read(position, _LOCATOR64.size))
        if magic != _LOCATOR64_MAGIC or disk or disks != 1 or where != position - _END64.size:
            raise BundleError("the zip64 locator is malformed")
        fields = _END64.unpack(self.read(where, _END64.size))
        magic, length, _, _, disk, first, here, count, size, start = fields
        if magic != _END64_MAGIC or length != _END64.size - 12 or disk or first or here != count:
            raise BundleError("the zip64 end record is malformed")
        return where, count, size, start

    def _parse(self, data: bytes, count: int) -> dict[str, _Listed]:
        listed: dict[str, _Listed] = {}
        position = 0
        for _ in range(count):
            if position + _CENTRAL.size > len(data):
                raise BundleError("the zip's directory is cut short")
            fields = _CENTRAL.unpack_from(data, position)
            magic, _, _, flags, method, _, _, crc, packed, size, name_len, extra_len, comment_len = fields[:13]
            disk, _, mode, header = fields[13:]
            position += _CENTRAL.size
            after = position + name_len + extra_len
            if magic != _CENTRAL_MAGIC or comment_len or disk or after > len(data):
                raise BundleError("a record of the zip's directory is malformed")
            name = _decode(data[position : position + name_len])
            if name in listed:
                raise BundleError(f"two members are named '{name}'")
            extra = data[position + name_len : after]
            size, packed, header = _widen(extra, (size, packed, header), name)
            listed[name] = _Listed(name, flags, method, crc, packed, size, header, mode)
            position = after
        if position != len(data):
            raise BundleError("the zip's directory has bytes after its last record")
        return listed

    def _check(self, listed: _Listed) -> Entry:
        name = listed.name
        if listed.flags:
            raise BundleError(f"member '{name}' is encrypted or has flags that are not allowed in a bundle")
        if listed.method != _STORED:
            raise BundleError(
                f"member '{name}' is compressed", hint="members are stored without compression; do not repack a bundle"
            )
        if listed.packed != listed.size:
            raise BundleError(f"member '{name}' has two different sizes")
        if stat.S_IFMT(listed.mode >> 16) not in (0, stat.S_IFREG):
            raise BundleError(f"member '{name}' is not a regular file")
        if listed.header + _LOCAL.size + len(name) + listed.size > self._start:
            raise BundleError(f"member '{name}' ({listed.size} bytes) reaches outside the file")
        head = self.read(listed.header, _LOCAL.size + len(name))
        magic, _, flags, method, _, _, crc, packed, size, name_len, extra_len = _LOCAL.unpack_from(head)
        if magic != _LOCAL_MAGIC or flags or method != _STORED or head[_LOCAL.size :] != name.encode("ascii"):
            raise BundleError(f"the header of member '{name}' is malformed")
        if name_len != len(name):
            raise BundleError(f"the header of member '{name}' has another name")
        if _MAX32 in (packed, size):
            extra = self.read(listed.header + len(head), extra_len)
            size, packed, _ = _widen(extra, (size, packed, 0), name)
        if (crc, packed, size) != (listed.crc, listed.packed, listed.size):
            raise BundleError(f"the header of member '{name}' contradicts the directory")
        data = listed.header + len(head) + extra_len
        if data + size > self._start:
            raise BundleError(f"member '{name}' ({size} bytes) reaches outside the file")
        return Entry(name, size, crc, listed.header, data)


def _decode(raw: bytes) -> str:
    try:
        name = raw.decode("ascii")
    except UnicodeDecodeError:
        name = ""
    if not name_is_safe(name):
        raise BundleError(f"a member has a name that is not allowed in a bundle: {raw[:MAX_NAME]!r}")
    return name


def _widen(extra: bytes, values: tuple[int, int, int], name: str) -> tuple[int, int, int]:
    """`values` (size, packed size, header offset), with those equal to 2^32-1 replaced from the zip64 field (4.5.3)."""
    if _MAX32 not in values:
        return values
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        position += 4
        if position + length > len(extra):
            break
        if kind == _ZIP64_ID:
            wanted = values.count(_MAX32)
            if length != 8 * wanted:
                break
            wide = iter(struct.unpack_from(f"<{wanted}Q", extra, position))
            size, packed, header = (next(wide) if value == _MAX32 else value for value in values)
            return size, packed, header
        position += length
    raise BundleError(f"the zip64 sizes of member '{name}' are malformed")
