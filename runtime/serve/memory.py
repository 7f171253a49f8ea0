"""Memory of requests: taken before it is used, and given back when the answer is sent.

What the models themselves use is not counted.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from heterocc.runtime.serve.errors import QueueFullError, RequestSizeError


def resident() -> int:
    """Bytes of this process in the machine's memory; 0 where the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Memory:
    """The bytes that all requests together may take. For use on one event loop; workers may only take."""

    def __init__(self, limit: int, for_expected: int | None = None) -> None:
        """`for_expected` of the bytes may be held for what has not been received yet; all, if it is not given."""
        self.limit = limit
        self.taken = 0
        self.expected = 0
        """The bytes of those taken that are for what has not been received yet."""
        self._for_expected = limit if for_expected is None else for_expected
        self.lock = threading.Lock()
        self._loaded = resident()
        self._waiting: list[tuple[int, Holding, asyncio.Future[None]]] = []

    def begin(self) -> None:
        """Note what the process takes when its models are loaded and have run nothing yet."""
        self._loaded = resident()

    @property
    def kept(self) -> int:
        """Bytes by which the process has grown since then, without those that requests take now.

        Its largest part is what ONNX Runtime's arena keeps of the largest requests; the C library keeps some, too.
        """
        return max(0, resident() - self._loaded - self.taken)

    @contextmanager
    def hold(self) -> Iterator[Holding]:
        """What one request takes, given back at the end of the block."""
        holding = Holding(self)
        try:
            yield holding
        finally:
            holding.leave()()

    def has(self, size: int) -> bool:
        """Whether so many bytes are free."""
        return self.taken + size <= self.limit

    @property
    def crowded(self) -> bool:
        """Whether a request waits for memory."""
        return bool(self._waiting)

    def wake(self) -> None:
        """Give those that wait what they asked for, the last one first: many who wait in vain delay no later one."""
        while self._waiting and self._has_for_expected(self._waiting[-1][0]):
            size, holding, turn = self._waiting.pop()
            if not turn.done():
                holding.expect(size)
                turn.set_result(None)

    def _has_for_expected(self, size: int) -> bool:
        return self.has(size) and self.expected + size <= self._for_expected

    async def wait(self, size: int, holding: Holding, seconds: float) -> None:
        """Wait until the bytes are counted for a request. Raises QueueFullError after some seconds."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, holding, turn)
        self._waiting.append(entry)
        self.wake()
        try:
            await asyncio.wait_for(turn, seconds)
        except TimeoutError:
            raise _full() from None
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self.wake()


class Holding:
    """What one request takes; `size` is in bytes."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._left = False
        self.size = 0
        self._expected = 0

    def take(self, size: int) -> None:
        """Take more bytes. Raises RequestSizeError if the service never has so many, QueueFullError if not now."""
        with self._memory.lock:
            if self.size + size > self._memory.limit:
                raise RequestSizeError(
                    f"the request needs {self.size + size} bytes of memory, and all together may take "
                    f"{self._memory.limit}",
                    hint="send several smaller requests",
                )
            self._take_now(size)

    def take_for_answer(self, size: int) -> None:
        """Take the bytes of a part of an answer before it is made, in a worker. Raises as `take`."""
        with self._memory.lock:
            if self._left:
                raise QueueFullError("nobody waits for the answer any more")
            if size > self._memory.limit:
                raise RequestSizeError(
                    f"the answer may take {size} bytes, and all requests together {self._memory.limit}",
                    hint="request fewer outputs, binary data in place of JSON, or smaller ones",
                )
            self._take_now(size)

    def _take_now(self, size: int) -> None:
        if not self._memory.has(size):
            raise _full()
        self.size += size
        self._memory.taken += size

    def add(self, size: int) -> None:
        """Count bytes that are in use already, such as those of an answer."""
        with self._memory.lock:
            self.size += size
            self._memory.taken += size

    def expect(self, size: int) -> None:
        """Count bytes for what is to be received."""
        self.add(size)
        self._expected += size
        self._memory.expected += size

    def received(self, size: int) -> None:
        """What was expected is there, and has a size."""
        taken = self._expected
        self._end_expecting()
        self.give_back(taken - size)

    def _end_expecting(self) -> None:
        self._memory.expected -= self._expected
        self._expected = 0

    def give_back(self, size: int) -> None:
        """Give back bytes that are free again."""
        with self._memory.lock:
            self.size -= size
            self._memory.taken -= size
        self._memory.wake()

    def leave(self) -> Callable[[], None]:
        """Hold nothing more; the function gives back what is taken, once."""
        rest = Holding(self._memory)
        self._end_expecting()
        with self._memory.lock:
            rest.size, self.size, self._left = self.size, 0, True
        return lambda: rest.give_back(rest.size)

    async def receive(self, size: int, seconds: float) -> None:
        """Take bytes as soon as they are free. Raises QueueFullError after some seconds."""
        await self._memory.wait(size, self, seconds)


def _full() -> QueueFullError:
    return QueueFullError("other requests take all the memory that requests may take", hint="send it again later")
