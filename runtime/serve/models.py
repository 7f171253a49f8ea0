"""The loaded models of a service. Loading and unloading never drop a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import time
from typing import Any
from weakref import WeakValueDictionary

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.feeds import nearest
from heterocc.runtime.serve.batch_check import batching_of, check_rows
from heterocc.runtime.serve.errors import ModelNotServedError, ServiceError
from heterocc.runtime.serve.names import shown
from heterocc.runtime.serve.repository import Repository, latest, version_order
from heterocc.runtime.serve.telemetry.arena import Arena
from heterocc.runtime.serve.telemetry.recent import Recent
from heterocc.runtime.serve.telemetry.statistics import Statistics
from heterocc.runtime.serve.tensors import datatype_of
from heterocc.runtime.serve.workers import Line
from heterocc.runtime.session import Session

_log = logging.getLogger(__name__)

Identity = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output as the protocol describes it; an unknown dimension is None, an unknown rank no shape."""

    name: str
    datatype: str
    shape: tuple[int | None, ...] | None


@dataclass(slots=True, eq=False)
class Served:
    """A loaded version of a model. It is closed when it is retired and its last request has ended."""

    name: str
    version: str
    path: Path
    identity: Identity
    session: Session
    line: Line
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    replaceable: dict[str, Tensor] = field(default_factory=dict)
    """Constants that a request may give as inputs, too."""
    arena: Arena | None = None
    """ONNX Runtime's, if the model runs there."""
    loaded: float = field(default_factory=time)
    """When it was loaded, as seconds since 1970."""
    recent: Recent = field(default_factory=Recent)
    statistics: Statistics = field(default_factory=Statistics)
    users: int = 0
    retired: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes that its session keeps for runs, without weights."""
        return self.session.allocated_bytes + (0 if self.arena is None else self.arena.part(self))

    def note_run(self) -> None:
        """Note what a run has made ONNX Runtime's arena grow by."""
        if self.arena is not None:
            self.arena.ran(self)

    def close(self) -> None:
        """Close the session. No request may use it."""
        self.session.close()
        if self.arena is not None:
            self.arena.left(self)


class Models:
    """The models of a repository that are loaded. For use on one event loop; bundles are opened in other threads."""

    def __init__(
        self,
        repository: Repository,
        open_session: Callable[[Path], Session],
        arena: Arena,
        queue: int,
        batch: int = 1,
    ) -> None:
        """`open_session` loads a bundle; `queue` is the limit of each version's line, `batch` that of a run's rows."""
        self._repository = repository
        self._open = open_session
        self._arena = arena
        self._queue = queue
        self._batch = batch
        self._served: dict[str, dict[str, Served]] = {}
        self._failures: dict[str, str] = {}
        self.changes = 0
        """How often a model was loaded or unloaded."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._closing: set[asyncio.Future[None]] = set()

    def __iter__(self) -> Iterator[Served]:
        for name in sorted(self._served):
            yield from self.versions(name)

    def versions(self, name: str) -> list[Served]:
        """The loaded versions of a model, oldest first. Raises ModelNotServedError if there are none."""
        try:
            versions = self._served[name]
        except KeyError:
            raise ModelNotServedError(f"no model '{shown(name)}' is loaded", hint=nearest(name, self._served)) from None
        return [versions[v] for v in sorted(versions, key=version_order)]

    def find(self, name: str, version: str = "") -> Served:
        """A loaded version of a model, the latest one if `version` is empty. Raises ModelNotServedError."""
        served = {s.version: s for s in self.versions(name)}
        wanted = version or latest(served)
        if wanted not in served:
            raise ModelNotServedError(
                f"version {shown(wanted)} of the model '{name}' is not loaded", hint=nearest(wanted, served)
            )
        return served[wanted]

    @contextmanager
    def using(self, served: Served) -> Iterator[None]:
        """Keep a version open for a request, even if it is unloaded meanwhile."""
        served.users += 1
        try:
            yield
        finally:
            self._release(served)

    def bundles(self) -> int:
        """The number of bundles in the repository. Raises the errors of `Repository.scan`."""
        return sum(map(len, self._repository.scan().values()))

    async def index(self) -> list[dict[str, str]]:
        """Every version in the repository or loaded, with `state` (READY or UNAVAILABLE) and `reason`."""
        found = await asyncio.to_thread(self._repository.scan)
        rows = []
        for name in sorted({*found, *self._served}):
            loaded = self._served.get(name, {})
            for version in sorted({*found.get(name, ()), *loaded}, key=version_order):
                ready = version in loaded
                reason = "" if ready else self._failures.get(name, "not loaded")
                rows.append(
                    {"name": name, "version": version, "state": "READY" if ready else "UNAVAILABLE", "reason": reason}
                )
        return rows

    async def load_all(self) -> None:
        """Load every model of the repository. Raises ServiceError if it has none, and the errors of `load`."""
        found = await asyncio.to_thread(self._repository.scan)
        if not found:
            raise ServiceError("there is no model to serve", hint="MODELS are bundles (.hcb), or folders of bundles")
        for name in found:
            await self.load(name)

    async def load(self, name: str) -> None:
        """Load a model's versions that the repository has now, and retire those that it no longer has.

        A version whose file is unchanged stays as it is. If one fails to load, all stay as they were.
        Raises ModelNotServedError if the repository lacks the model, and the errors of `heterocc.runtime.load`.
        """
        async with self._lock(name):
            found = await asyncio.to_thread(self._repository.scan)
            if name not in found:
                raise ModelNotServedError(f"there is no bundle of the model '{shown(name)}'", hint=nearest(name, found))
            old = self._served.get(name, {})
            new: dict[str, Served] = {}
            try:
                for version, path in sorted(found[name].items(), key=lambda item: version_order(item[0])):
                    new[version] = await self._opened(name, version, path, old.get(version))
            except BaseException as error:
                self._retire(s for s in new.values() if s not in old.values())
                if isinstance(error, HeteroccError) and not old:
                    self._failures[name] = f"{error.code}: {error.message}"
                raise
            self._served[name] = new
            self.changes += 1
            self._failures.pop(name, None)
            self._retire(s for s in old.values() if s not in new.values())
            for served in new.values():
                if served not in old.values():
                    _log.info("model loaded", extra=_fields(served))

    async def unload(self, name: str) -> None:
        """Unload a model. Requests in progress are answered; later ones get ModelNotServedError, as this call does."""
        async with self._lock(name):
            versions = self.versions(name)
            del self._served[name]
            self.changes += 1
            self._retire(versions)

    async def close(self) -> None:
        """Unload everything and wait until it is closed."""
        names = list(self._served)
        for name in names:
            self._retire(self._served.pop(name).values())
        await asyncio.gather(*self._closing)

    async def _opened(self, name: str, version: str, path: Path, old: Served | None) -> Served:
        identity = await asyncio.to_thread(_identity, path)
        if old is not None and old.identity == identity:
            return old
        session = await asyncio.to_thread(self._open, path)
        try:
            served = Served(
                name,
                version,
                path,
                identity,
                session,
                await asyncio.to_thread(self._line, name, session),
                {t.name: _tensor("input", t, path) for t in session.inputs},
                {t.name: _tensor("output", t, path) for t in session.outputs},
                {t.name: _tensor("constant", t, path) for t in session.replaceable if datatype_of(t.dtype)},
                self._arena if _uses_onnx(session) else None,
            )
        except BaseException:
            session.close()
            raise
        served.note_run()  # the line may have tried batches
        return served

    def _lock(self, name: str) -> asyncio.Lock:
        """The lock of a name, which goes with its last user: clients may ask for any names."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    def _line(self, name: str, session: Session) -> Line:
        if self._batch == 1:
            return Line(name, self._queue)
        batching = batching_of(session, self._batch)
        reason = batching if isinstance(batching, str) else check_rows(session, batching)
        if isinstance(batching, str) or reason is not None:
            _log.warning("requests run alone", extra={"model": name, "reason": reason})
            return Line(name, self._queue)
        return Line(name, self._queue, batching)

    def _retire(self, versions: Iterable[Served]) -> None:
        for served in versions:
            served.retired = True
            served.users += 1
            self._release(served)

    def _release(self, served: Served) -> None:
        served.users -= 1
        if served.retired and not served.users:
            closing = asyncio.ensure_future(asyncio.to_thread(served.close))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            _log.info("model unloaded", extra=_fields(served))


def _uses_onnx(session: Session) -> bool:
    parts = (part for variant in session.variants for part in variant.partitions)
    return bool(session.replaceable) or any(part.kind == "onnx" for part in parts)


def _identity(path: Path) -> Identity:
    """The file as it is now; a bundle is replaced by renaming, which changes it."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0, 0)  # loading gives the reason
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _tensor(kind: str, info: Any, path: Path) -> Tensor:
    datatype = datatype_of(info.dtype)
    if datatype is None:
        raise ServiceError(
            f"{kind} '{info.name}' has the type {info.dtype}, for which the Open Inference Protocol has no datatype",
            where=str(path),
        )
    shape = None if info.shape is None else tuple(d if isinstance(d, int) else None for d in info.shape)
    return Tensor(info.name, datatype, shape)


def _fields(served: Served) -> Mapping[str, object]:
    session = served.session
    return {
        "model": served.name,
        "model_version": served.version,
        "bundle": str(served.path),
        "variant": session.variant.name,
        "notes": list(session.notes),
    }
