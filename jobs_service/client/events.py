"""The subscriptions of a client, and the streams of server-sent events that they are delivered from.

A broken stream is reopened, without a time limit once it has worked; it then delivers the changes of the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from jobs_service import json_types, names
from jobs_service.actors.subscriptions import Hub, SubscribedJob, is_same
from jobs_service.client.connection import Backoff, Connection, Lost, segment
from jobs_service.errors import (
    JobNotFound,
    JobsError,
    ServiceClosed,
    StoreError,
    StoreUnavailable,
    SupervisorFailed,
    in_one_line,
)
from jobs_service.http import problems, wire
from jobs_service.model import JobEvent, JobId, JobState, JobType

_PATH: Final = "/v1/events"
_MOST_JOBS: Final = 1_000
"""Most jobs of one stream."""
_TOGETHER: Final = 10
"""This number of streams of about the same size is merged into one."""
_SIZES: Final = (1, 10, 100)
_PASSING: Final = (StoreUnavailable, ServiceClosed, SupervisorFailed)
"""Errors of the server itself rather than of a job."""
_END: Final = b"\n\n"
"""The end of an event. The server writes no other ends of lines, and proxies change none."""
_MOST_BYTES: Final = 16 << 20
"""Most bytes of one event: far above a server's largest."""


@dataclass(frozen=True)
class RemoteType:
    """A type in the hub, in place of its keys in a store.

    Attributes:
        path: the type as a segment of a path, by which types are told apart.
        type: the type itself.
    """

    path: str
    type: JobType = field(compare=False)

    def data_key(self, id: JobId) -> bytes:
        """Return a unique key of a job."""
        return f"{self.path}/{segment(id)}".encode()


class RemoteHub(Hub):
    """All subscriptions of one client.

    Subscriptions within one turn of the loop share a stream.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._waiting: list[SubscribedJob] = []
        self._streams: dict[SubscribedJob, _Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, targets: Sequence[SubscribedJob]) -> None:
        """Begin to deliver the events of their jobs to targets. Raises ServiceClosed unless the client is open."""
        super().add(targets)
        for target in targets:
            self.take_fresh(target.keys)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._start)
        self._waiting += targets

    def discard(self, target: SubscribedJob) -> None:
        """Remove a target if it is present."""
        super().discard(target)
        stream = self._streams.pop(target, None)
        if stream is not None:
            stream.leave(target)

    def close(self, error: JobsError) -> None:
        """End all present and later subscriptions with an error."""
        super().close(error)
        for task in self._tasks:
            task.cancel()

    async def closed(self) -> None:
        """Wait for the end of every stream."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self) -> None:
        """Open streams for the new subscriptions that have not ended yet."""
        waiting = [target for target in self._waiting if not target.ended and self._has(target)]
        self._waiting = []
        waiting += self._merged()
        for start in range(0, len(waiting), _MOST_JOBS):
            stream = _Stream(self._connection, waiting[start : start + _MOST_JOBS])
            self._streams.update(dict.fromkeys(waiting[start : start + _MOST_JOBS], stream))
            task = asyncio.get_running_loop().create_task(stream.run(), name=f"events of {self._connection.url}")
            stream.task = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _merged(self) -> list[SubscribedJob]:
        """End groups of many small streams, each with a connection of its own, and return their targets.

        Only streams of about the same size are merged, so that a target changes its stream a few times only.
        """
        taken: list[SubscribedJob] = []
        streams = [*dict.fromkeys(self._streams.values())]
        for size in _SIZES:
            alike = [stream for stream in streams if size <= stream.size < _TOGETHER * size]
            if len(alike) >= _TOGETHER:
                taken += [target for stream in alike for target in stream.give_up()]
        return taken

    def _has(self, target: SubscribedJob) -> bool:
        return target in self.targets(target.keys).get(target.data_key, {})


class _Stream:
    """The stream of the events of some jobs, while targets wait for them.

    Attributes:
        task: the task that runs it.
    """

    def __init__(self, connection: Connection, targets: Iterable[SubscribedJob]) -> None:
        self._connection = connection
        self._backoff = Backoff(connection.sources)
        self._targets: dict[bytes, dict[SubscribedJob, None]] = {}
        for target in targets:
            self._targets.setdefault(target.data_key, {})[target] = None
        self._last_id: str | None = None
        self._names: list[list[Any]] = []
        self._was_there = any(target.reported for targets in self._targets.values() for target in targets)
        self.task: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        """The number of its jobs."""
        return len(self._targets)

    def give_up(self) -> list[SubscribedJob]:
        """End the stream, and return its targets for another one."""
        targets = [target for targets in self._targets.values() for target in targets]
        self._targets.clear()
        if self.task is not None:
            self.task.cancel()
        return targets

    def leave(self, target: SubscribedJob) -> None:
        """Remove a target; the stream ends with its last one."""
        self._forget(target)
        if not self._targets and self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """Deliver events until every target has ended."""
        deadline = asyncio.get_running_loop().time() + self._connection.timeout
        while self._targets:
            try:
                await self._try()
            except Lost as lost:
                pause = self._backoff.pause()
                if not self._was_there and asyncio.get_running_loop().time() + pause >= deadline:
                    return self._fail(lost.error, [*self._targets])
                await asyncio.sleep(pause)

    async def _try(self) -> None:
        try:
            await self._tell_all()
        except JobsError as error:
            self._refused(error)
        except (ValueError, KeyError, TypeError) as error:
            why = f"{self._connection.url} has sent an event that cannot be read: {in_one_line(str(error), 100)}"
            self._fail(JobsError(why), [*self._targets])

    async def _tell_all(self) -> None:
        """Deliver the events of one connection."""
        headers = {"Accept": "text/event-stream"}
        if self._last_id is None:
            jobs = [next(iter(targets)) for targets in self._targets.values()]
            self._names = [[names.name(target.keys.type), names.name(target.id)] for target in jobs]
        else:  # the id holds the state of each of these jobs, including jobs that have ended since
            headers["Last-Event-ID"] = self._last_id
        async with self._connection.stream("POST", _PATH, {"jobs": self._names}, headers=headers) as chunks:
            if chunks is None:  # No events after that id, but targets wait, so start from the beginning.
                self._last_id = None
            else:
                parser = EventParser()
                async for chunk in chunks:
                    self._was_there = True
                    self._backoff.reset()
                    for event in parser.feed(chunk):
                        self._take(event)
                    self._last_id = parser.last_id
                    if not self._targets:
                        return
        raise Lost(StoreUnavailable(f"{self._connection.url} has ended a stream of events"))

    def _take(self, event: ServerEvent) -> None:
        if event.kind == "job":
            self._tell(wire.event_of(json_types.loads(event.data)))
        elif event.kind == "problem":
            self._refused(problems.error_of(json_types.loads(event.data)))

    def _tell(self, event: JobEvent) -> None:
        """Report a new event of a job; a reconnected stream begins with events that are known already."""
        for target in [*self._targets.get(self._key(event.type, event.id), ())]:
            if target.reported is None or not is_same(event, target.reported):
                target.report(event)
            if target.ended:
                self._forget(target)

    def _refused(self, error: JobsError) -> None:
        """Handle an error from the server.

        Raises:
            Lost: the error is a passing one of the server.
        """
        if isinstance(error, _PASSING) or (isinstance(error, StoreError) and error.retryable):
            raise Lost(error)
        if error.type is None or error.id is None:
            return self._fail(error, [*self._targets])
        key = self._key(error.type, error.id)
        if isinstance(error, JobNotFound) and any(target.reported for target in self._targets.get(key, ())):
            # The job existed at its last event.
            return self._tell(JobEvent(error.type, error.id, JobState.REMOVED, None, None, None))
        if key not in self._targets:
            return self._fail(error, [*self._targets])
        self._fail(error, [key])

    def _fail(self, error: JobsError, keys: Iterable[bytes]) -> None:
        for key in keys:
            for target in self._targets.pop(key, {}):
                target.fail(error)

    def _forget(self, target: SubscribedJob) -> None:
        targets = self._targets.get(target.data_key)
        if targets is not None:
            targets.pop(target, None)
            if not targets:
                del self._targets[target.data_key]

    def _key(self, type: Any, id: Any) -> bytes:
        return RemoteType(segment(type), type).data_key(id)


class ServerEvent(NamedTuple):
    """One event.

    Attributes:
        kind: its name.
        data: its text.
        id: the position to resume after when the connection is lost; None if the stream has not sent one.
    """

    kind: str
    data: bytes
    id: str | None


class EventParser:
    """Parses the bytes of one stream into its events: each has its fields on lines, and ends with an empty one.

    Attributes:
        last_id: the id to resume after; an id without data, which makes no event, counts as well.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self.last_id: str | None = None

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Yield the events that the next bytes complete.

        Raises:
            ValueError: an event is too large.
        """
        searched = max(len(self._rest) - 1, 0)
        self._rest += chunk
        while (end := self._rest.find(_END, searched)) >= 0:
            lines = bytes(self._rest[:end]).split(b"\n")
            del self._rest[: end + len(_END)]
            searched = 0
            if (event := self._event(lines)) is not None:
                yield event
        if len(self._rest) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")

    def _event(self, lines: Iterable[bytes]) -> ServerEvent | None:
        kind, data = "message", []
        for line in lines:
            field, _, value = line.partition(b":")  # one that begins with a colon is a comment: it has no field
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                kind = value.decode(errors="replace")
            elif field == b"id":
                self.last_id = value.decode(errors="replace")
        return ServerEvent(kind, b"\n".join(data), self.last_id) if data else None
