"""gRPC's public port: clients that do not acknowledge settings, and what passes through unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterocc.runtime.serve.errors import ServiceError
from heterocc.runtime.serve.protocols import rpc_front
from heterocc.runtime.serve.protocols.rpc_front import Front, Opening, private_folder
from tests.runtime.serve.hostile import INFER, channel_to, cost_of, infer, message, write_models
from tests.runtime.serve.process import RUNTIME_COMMAND, ServiceProcess

DATA, HEADERS, SETTINGS, PING, CONTINUATION = 0, 1, 4, 6, 9
ACK, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + data


ACKNOWLEDGED = frame(SETTINGS, ACK, 0)
BEGIN = PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20))


def field(name: str, value: str, *, kept: bool = False) -> bytes:
    """A header field without compression; a `kept` one may be repeated by its number in the table, 62."""

    def text(value: str) -> bytes:
        size, head = len(value) - 127, bytearray([min(len(value), 127)])
        while size >= 128:
            head.append(size & 0x7F | 0x80)
            size >>= 7
        return bytes(head + bytes([size] if size >= 0 else [])) + value.encode()

    return bytes([0x40 if kept else 0]) + text(name) + text(value)


FIELDS = b"".join(
    field(name, value) for name, value in (
        (":method", "POST"), (":scheme", "http"), (":path", INFER), (":authority", "a"), ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
)  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = write_models(tmp_path_factory.mktemp("front") / "models")
    (temporary := folder.parent / "temporary").mkdir()
    with ServiceProcess(
        folder, "--client-seconds", 2, command=RUNTIME_COMMAND, environment={"TMPDIR": str(temporary)}
    ) as service:
        assert not list(temporary.iterdir()), "a service that is killed leaves no folder behind"
        with channel_to(service) as channel:
            infer(channel, message("numbers", "FP32", 2, bytes(8)))
        yield service


def many_small_fields() -> bytes:
    block = b"".join(field(f"x{number}", "") for number in range(60_000))
    return frame(HEADERS, 0, 1, FIELDS) + b"".join(
        frame(CONTINUATION, 0, 1, block[at : at + 16384]) for at in range(0, len(block), 16384)
    )


def repeated_fields() -> bytes:
    first = frame(HEADERS, END_HEADERS, 1, FIELDS + field("a", "v" * 4000, kept=True) + b"\xbe" * 4000)
    rest = FIELDS + b"\xbe" * 4000
    return first + b"".join(frame(HEADERS, END_HEADERS, stream, rest) for stream in range(3, 200, 2))


@pytest.mark.parametrize("attack", [many_small_fields, repeated_fields])
def test_headers_of_clients_that_acknowledge_no_settings_take_little_memory(
    service: ServiceProcess, attack: Callable[[], bytes]
) -> None:
    sent = BEGIN + attack()
    host, _, port = service.grpc.partition(":")

    def send() -> None:
        with ExitStack() as stack:
            connections = [stack.enter_context(socket.create_connection((host, int(port)), 10)) for _ in range(6)]

            def one(connection: socket.socket) -> None:
                with contextlib.suppress(OSError):
                    connection.sendall(sent)

            threads = [threading.Thread(target=one, args=(connection,)) for connection in connections]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            time.sleep(0.3)

    assert cost_of(service, send).memory < 40_000_000, "without the front hundreds of MB"


@pytest.mark.parametrize("flood", [frame(PING, 0, 0, bytes(8)), frame(SETTINGS, 0, 0), frame(DATA, 0, 1)])
def test_frames_without_an_acknowledgement_end_the_connection(service: ServiceProcess, flood: bytes) -> None:
    host, _, port = service.grpc.partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(BEGIN)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(1000):
                connection.sendall(flood * 10_000)


def test_a_client_that_never_acknowledges_is_disconnected(service: ServiceProcess) -> None:
    host, _, port = service.grpc.partition(":")
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(BEGIN)
        start = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1 << 16):
                pass
        assert time.monotonic() - start < 8


def test_a_client_that_takes_what_is_sent_has_no_more_time_to_acknowledge(tmp_path: Path) -> None:
    path, size = str(tmp_path / "library"), 1 << 24

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(size))
        while await reader.read(1 << 16):
            pass
        writer.close()

    async def ask() -> None:
        front = Front(path, 3.0)
        library = await asyncio.start_unix_server(send, path)
        listening = await asyncio.get_running_loop().create_server(front.client, "127.0.0.1", 0)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)  # little is on its way to it
        client.connect(listening.sockets[0].getsockname())
        reader, writer = await asyncio.open_connection(sock=client)
        writer.write(BEGIN)
        await asyncio.sleep(0.5)  # until nothing more can be sent to it
        await reader.readexactly(size)
        with contextlib.suppress(ConnectionResetError):
            assert not await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await front.close()
        for server in (listening, library):
            server.close()

    asyncio.run(ask())


def test_large_messages_of_many_clients_pass_unchanged(service: ServiceProcess) -> None:
    def ask(seed: int) -> None:
        data = bytes([seed]) * 3_000_000
        with channel_to(service) as channel:
            answer = channel.unary_unary(INFER)(message("texts", "BYTES", 1, struct.pack("<I", len(data)) + data))
        answers.append(answer.count(data) == 1)

    answers: list[bool] = []
    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 6


FRAMES = st.lists(
    st.builds(frame, st.sampled_from([DATA, HEADERS, PING, 0xFA]), st.integers(0, 255), st.integers(0, 9),
              st.binary(max_size=30)),
    max_size=6,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(FRAMES, FRAMES, st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_the_first_acknowledgement_is_moved_before_all_but_the_first_frame(
    before: list[bytes], after: list[bytes], sizes: list[int]
) -> None:
    rest = b"".join(after) + ACKNOWLEDGED
    data, opening, got = BEGIN + b"".join(before) + ACKNOWLEDGED + rest, Opening(), b""
    for turn in range(len(data)):
        if opening.ended or not data:
            break
        size = sizes[turn % len(sizes)]
        got, data = got + opening.passed(data[:size]), data[size:]
    assert got + data == BEGIN + ACKNOWLEDGED + b"".join(before) + rest


def test_a_folder_that_cannot_be_made_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(**_: object) -> None:
        raise PermissionError

    with private_folder() as folder:
        assert Path(folder).stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(rpc_front.tempfile, "TemporaryDirectory", fail)
    with pytest.raises(ServiceError, match="has no place") as caught:
        private_folder()
    assert "--no-grpc" in (caught.value.hint or "")
